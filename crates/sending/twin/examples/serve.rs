//! Serves one file by HTTP/1.1 from twin memory, over TCP or a UNIX socket.
//!
//! ```console
//! $ cargo run --release --example serve -- FILE 127.0.0.1:8080 &
//! $ curl http://127.0.0.1:8080/
//! $ cargo run --release --example serve -- FILE /tmp/serve.socket &
//! $ curl --unix-socket /tmp/serve.socket http://file/
//! ```

use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::thread;
use uncopy_twin::{Buffer, Sender};

const MAX_HEAD_BYTES: u64 = 8 << 10;

fn load(path: &str) -> io::Result<Buffer> {
    let mut file = File::open(path)?;
    let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut body = Buffer::zeroed(len)?;
    file.read_exact(&mut body)?;
    Ok(body)
}

/// Sends all parts, with as many calls as needed.
fn send_all(to: &mut impl Write, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match to.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => IoSlice::advance_slices(&mut parts, sent),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Answers requests until the client closes the connection, or sends an unsupported request.
fn answer<S>(socket: S, body: &Buffer) -> io::Result<()>
where
    S: AsFd + Read,
{
    let mut requests = BufReader::new(Sender::new(socket));
    loop {
        let mut head = Vec::new();
        let mut limited = (&mut requests).take(MAX_HEAD_BYTES);
        while !head.ends_with(b"\r\n\r\n") {
            if limited.read_until(b'\n', &mut head)? == 0 {
                return Ok(());
            }
        }
        let (status, body) = match head.split(|byte| *byte == b' ').next() {
            Some(b"GET") => ("200 OK", &body[..]),
            _ => ("405 Method Not Allowed", &[][..]),
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
        send_all(requests.get_mut(), &mut [IoSlice::new(head.as_bytes()), IoSlice::new(body)])?;
    }
}

fn serve<S>(connections: impl Iterator<Item = io::Result<S>>, body: &Buffer) -> io::Result<()>
where
    S: AsFd + Read + Send,
{
    thread::scope(|threads| {
        for connection in connections {
            let socket = connection?;
            threads.spawn(move || {
                if let Err(error) = answer(socket, body) {
                    eprintln!("serve: a connection: {error}");
                }
            });
        }
        Ok(())
    })
}

fn run(path: &str, address: &str) -> io::Result<()> {
    let body = load(path)?;
    uncopy_twin::probe();
    let status = uncopy_twin::status();
    if address.contains('/') {
        let listener = UnixListener::bind(address)?;
        println!("serving {} bytes at {address}; by reference: {status}", body.len());
        serve(listener.incoming(), &body)
    } else {
        let listener = TcpListener::bind(address)?;
        println!("serving {} bytes at {}; by reference: {status}", body.len(), listener.local_addr()?);
        serve(listener.incoming(), &body)
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, address] = &arguments[..] else {
        eprintln!("usage: serve FILE ADDRESS:PORT|PATH");
        return ExitCode::from(2);
    };
    match run(path, address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serve: {path} at {address}: {error}");
            ExitCode::FAILURE
        }
    }
}
