"""A server for aiohttp, for ASGI and for WSGI: GET /LENGTH gives so many bytes, POST gives the body back
(aiohttp: while it still comes, or once all of it is there under /whole)."""

import random
import sys


def data(length):
    return random.Random(length).randbytes(length)


async def asgi(scope, receive, send):
    if scope["type"] != "http":
        return
    if scope["method"] == "POST":
        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = b"".join(parts)
    else:
        body = data(int(scope["path"][1:]))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    for at in range(0, len(body), 1 << 20):
        await send({"type": "http.response.body", "body": body[at:at + (1 << 20)], "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def wsgi(environ, start_response):
    if environ["REQUEST_METHOD"] == "POST":
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    else:
        body = data(int(environ["PATH_INFO"][1:]))
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body[at:at + (1 << 20)] for at in range(0, len(body), 1 << 20)]


if __name__ == "__main__":
    from aiohttp import web

    async def get(request):
        return web.Response(body=data(int(request.match_info["length"])))

    async def whole(request):
        return web.Response(body=await request.read())

    async def post(request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        async for part in request.content.iter_any():
            await answer.write(part)
        await answer.write_eof()
        return answer

    application = web.Application(client_max_size=1 << 28)
    application.add_routes([web.get("/{length}", get), web.post("/echo", post), web.post("/whole", whole)])
    web.run_app(application, host="127.0.0.1", port=int(sys.argv[1]), print=None)
