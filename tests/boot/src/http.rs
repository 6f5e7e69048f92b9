//! A client for the guest's HTTP endpoints that can also misbehave.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// How long one step of a conversation may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait before an attempt is repeated.
const PAUSE: Duration = Duration::from_millis(100);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status, as in 200.
    pub status: u16,
    /// The head, its first line included.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Response {
    /// The value of the header field `name`, whose case does not matter.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }

    /// Parses what came until the connection was closed.
    ///
    /// # Errors
    /// If it is no whole answer.
    pub fn parse(bytes: &[u8]) -> io::Result<Self> {
        let malformed = || {
            io::Error::new(
                ErrorKind::InvalidData,
                format!("no whole answer: {}", bytes.escape_ascii()),
            )
        };
        let text = std::str::from_utf8(bytes).map_err(|_| malformed())?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or_else(malformed)?;
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .ok_or_else(malformed)?;
        let response = Self {
            status,
            head: head.to_owned(),
            body: body.to_owned(),
        };
        match response.header("Content-Length").map(str::parse::<usize>) {
            Some(Ok(length)) if length == body.len() => Ok(response),
            None => Ok(response),
            Some(_) => Err(malformed()),
        }
    }
}

/// Connects to `port` of this machine.
///
/// # Errors
/// If nothing listens there.
pub fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), STEP_TIMEOUT)?;
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    stream.set_write_timeout(Some(STEP_TIMEOUT))?;
    Ok(stream)
}

/// Sends `bytes` and returns all that comes until the other side closes.
///
/// # Errors
/// If the connection fails, or nothing more comes for long.
pub fn exchange(port: u16, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = connect(port)?;
    stream.write_all(bytes)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Asks for `path`, with further header `fields` like `Accept: text/plain`.
///
/// # Errors
/// If there is no whole answer.
pub fn get(port: u16, path: &str, fields: &[&str]) -> io::Result<Response> {
    let mut request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for field in fields {
        request += field;
        request += "\r\n";
    }
    request += "\r\n";
    Response::parse(&exchange(port, request.as_bytes())?)
}

/// Asks for `path` until an answer comes or `patience` ends. An emulator accepts connections before its guest does, and closes them.
///
/// # Errors
/// The last attempt's.
pub fn get_patiently(port: u16, path: &str, patience: Duration) -> io::Result<Response> {
    let deadline = Instant::now() + patience;
    loop {
        match get(port, path, &[]) {
            Err(_) if Instant::now() < deadline => thread::sleep(PAUSE),
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_parsed_and_cut_ones_refused() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nContent-Type: text/plain\r\n\r\nok\n";
        let response = Response::parse(answer).unwrap();
        assert_eq!((response.status, response.body.as_str()), (200, "ok\n"));
        assert_eq!(response.header("content-type"), Some("text/plain"));
        assert!(Response::parse(&answer[..answer.len() - 1]).is_err());
        assert!(Response::parse(b"").is_err());
        assert!(Response::parse(b"HTTP/1.1 huh\r\n\r\n").is_err());
    }
}
