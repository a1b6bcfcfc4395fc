// Large data by buffers, workers, children and fetch; prints digests. Usage: tool.js URL
const { createHash } = require("crypto"), { execFileSync, spawn } = require("child_process"), fs = require("fs");
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");
const digest = (data) => createHash("sha256").update(data).digest("hex");
if (!isMainThread) {
    parentPort.postMessage(Buffer.from(workerData).reverse());
} else {
    (async () => {
        for (let at = 0; at < 4; at++) {
            const body = Buffer.from(await (await fetch(process.argv[2])).arrayBuffer());
            console.log("fetch", body.length, digest(body));
        }
        const data = fs.readFileSync("large");
        for (let at = 0; at < 4; at++) {
            const answer = await new Promise((resolve) => new Worker(__filename, { workerData: data }).on("message", resolve));
            console.log("worker", digest(answer));
        }
        console.log("child", digest(execFileSync("cat", { input: data, maxBuffer: 1 << 26 })));
        const child = spawn("cat");
        child.stdin.end(data);
        const sum = createHash("sha256");
        for await (const part of child.stdout) sum.update(part);
        console.log("pipe", sum.digest("hex"));
        fs.writeFileSync("copy", Buffer.concat([data, data.subarray(1000)]));
        fs.fsyncSync(fs.openSync("copy", "r+"));
        console.log("file", digest(await fs.promises.readFile("copy")));
    })();
}
