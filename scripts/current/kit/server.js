// A server of files below the working directory, in several ways, and of what is posted. Usage: server.js PORT
const fs = require("fs"), http = require("http"), path = require("path"), zlib = require("zlib");
const server = http.createServer((request, response) => {
    const [, way, name] = request.url.split("/");
    if (request.method === "POST") {
        request.pipe(response);
    } else if (way === "stream") {
        fs.createReadStream(path.basename(name), { highWaterMark: 1 << 18 }).pipe(response);
    } else if (way === "gzip") {
        fs.createReadStream(path.basename(name)).pipe(zlib.createGzip()).pipe(response);
    } else {
        fs.readFile(path.basename(name), (error, data) => response.end(error ? String(error) : data));
    }
});
server.listen(+process.argv[2], "127.0.0.1");
process.on("SIGTERM", () => { server.close(() => process.exit(0)); server.closeAllConnections(); });
