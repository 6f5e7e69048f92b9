//! One HTTP/1.x connection as a state machine over bytes (RFC 9112). It takes one request, gives one response, and closes.
//!
//! Memory is bounded by [`MAX_HEAD_BYTES`] and the response; time is bounded by a deadline for each state.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::str;
use core::time::Duration;

/// The longest request line and header fields, together, in bytes.
pub const MAX_HEAD_BYTES: usize = 4096;

/// The largest number of header fields.
const MAX_HEADERS: usize = 64;

/// How long after the connection's beginning the head of the request must be complete.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long after the request the whole response must have been taken.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long after the response the peer must have closed its side.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Defines the status codes with their number and reason phrase.
macro_rules! status_codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal $reason:literal,)+) => {
        /// An HTTP status code that this server uses (RFC 9110, 15, and RFC 6585, 5).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum StatusCode {
            $($(#[$doc])* $variant,)+
        }

        impl StatusCode {
            /// Every status code, in the order of the numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The three digits.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self {
                    $(Self::$variant => $number,)+
                }
            }

            const fn reason(self) -> &'static str {
                match self {
                    $(Self::$variant => $reason,)+
                }
            }
        }
    };
}

status_codes! {
    /// The request succeeded.
    Ok = 200 "OK",
    /// The request is not HTTP.
    BadRequest = 400 "Bad Request",
    /// Nothing is at that path.
    NotFound = 404 "Not Found",
    /// The method is neither GET nor HEAD.
    MethodNotAllowed = 405 "Method Not Allowed",
    /// The head is longer than [`MAX_HEAD_BYTES`], or has too many fields.
    HeaderFieldsTooLarge = 431 "Request Header Fields Too Large",
    /// A response could not be made.
    InternalServerError = 500 "Internal Server Error",
    /// The version is neither HTTP/1.0 nor HTTP/1.1.
    VersionNotSupported = 505 "HTTP Version Not Supported",
}

/// A method that this server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Wants the response.
    Get,
    /// Wants the response's header fields.
    Head,
}

/// A well-formed request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    method: Method,
    path: &'a str,
    headers: &'a [httparse::Header<'a>],
}

impl<'a> Request<'a> {
    /// The path, without scheme, host and query, as it was sent: percent-encoding is left as it is.
    #[must_use]
    pub const fn path(&self) -> &'a str {
        self.path
    }

    /// The values of the header field `name`, in any case; values that are not UTF-8 are left out.
    pub fn header(&self, name: &'static str) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        let named = self
            .headers
            .iter()
            .filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.filter_map(|header| str::from_utf8(header.value).ok())
    }

    /// The request in `head`: `Ok(None)` if more bytes are needed, and the error's response if it is none.
    fn parse(head: &'a [u8], headers: &'a mut [httparse::Header<'a>]) -> Result<Option<Self>, Response> {
        use httparse::Error;
        let mut parsed = httparse::Request::new(headers);
        let status = parsed.parse(head).map_err(|error| match error {
            Error::TooManyHeaders => Response::too_large(),
            Error::Version => Response::text(
                StatusCode::VersionNotSupported,
                "this server speaks HTTP/1.0 and HTTP/1.1\n",
            ),
            other => Response::text(
                StatusCode::BadRequest,
                format!("this is not an HTTP request: {other}\n"),
            ),
        })?;
        let (httparse::Status::Complete(_), Some(method), Some(target)) =
            (status, parsed.method, parsed.path)
        else {
            return Ok(None);
        };
        let headers = &*parsed.headers;
        let method = match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            _ => {
                let body = format!("the method {method} is not allowed, only GET and HEAD are\n");
                return Err(Response {
                    allow: true,
                    ..Response::text(StatusCode::MethodNotAllowed, body)
                });
            }
        };
        let hosts = headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case("host"))
            .count();
        if hosts > 1 || (hosts == 0 && parsed.version == Some(1)) {
            let body = "an HTTP/1.1 request has one Host header field\n";
            return Err(Response::text(StatusCode::BadRequest, body));
        }
        Ok(Some(Self {
            method,
            path: path(target),
            headers,
        }))
    }
}

/// The path in a request's target, which is either only path and query, or a whole URI (RFC 9112, 3.2).
fn path(target: &str) -> &str {
    let path = match target.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => {
            rest.find('/').map_or("/", |slash| &rest[slash..])
        }
        _ => target,
    };
    path.split_once('?').map_or(path, |(path, _query)| path)
}

/// A response to be sent.
#[derive(Clone, Debug)]
pub struct Response {
    code: StatusCode,
    content_type: &'static str,
    allow: bool,
    body: Cow<'static, str>,
}

impl Response {
    /// A response with a body of the media type `content_type`.
    #[must_use]
    pub fn new(code: StatusCode, content_type: &'static str, body: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            content_type,
            allow: false,
            body: body.into(),
        }
    }

    /// A response in plain text.
    #[must_use]
    pub fn text(code: StatusCode, body: impl Into<Cow<'static, str>>) -> Self {
        Self::new(code, "text/plain; charset=utf-8", body)
    }

    fn too_large() -> Self {
        let body = format!(
            "the request's head is larger than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} header fields\n"
        );
        Self::text(StatusCode::HeaderFieldsTooLarge, body)
    }

    /// The status code.
    #[must_use]
    pub const fn code(&self) -> StatusCode {
        self.code
    }

    /// The bytes on the wire; `method` is `None` if the request could not be read.
    fn encode(&self, method: Option<Method>) -> Vec<u8> {
        let Self {
            code,
            content_type,
            allow,
            body,
        } = self;
        let head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{}Connection: close\r\n\r\n",
            code.number(),
            code.reason(),
            body.len(),
            if *allow { "Allow: GET, HEAD\r\n" } else { "" },
        );
        let mut bytes = String::into_bytes(head);
        if method != Some(Method::Head) {
            bytes.extend_from_slice(body.as_bytes());
        }
        bytes
    }
}

/// What to do with a connection's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Leave it open.
    Keep,
    /// Close this side; nothing is pending.
    Close,
    /// Reset it: the peer has had its time.
    Abort,
}

#[derive(Debug)]
enum State {
    /// Receiving the request's head.
    Head { bytes: Vec<u8>, began: Duration },
    /// Sending the response, `sent` bytes of which have gone out.
    Response {
        bytes: Vec<u8>,
        sent: usize,
        began: Duration,
        progress: Duration,
    },
    /// Waiting for the peer to close its side.
    Closing { began: Duration },
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    state: State,
}

impl Connection {
    /// A connection that was established at `now`.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self {
            state: State::Head {
                bytes: Vec::new(),
                began: now,
            },
        }
    }

    /// Takes bytes that the peer has sent; what follows the head of the request is dropped. When they complete or spoil
    /// the request, the response becomes pending, made by `respond` if the request is well-formed, and its code is returned.
    pub fn receive(
        &mut self,
        received: &[u8],
        now: Duration,
        respond: impl FnOnce(&Request<'_>) -> Response,
    ) -> Option<StatusCode> {
        let State::Head { bytes: head, .. } = &mut self.state else {
            return None;
        };
        let room = MAX_HEAD_BYTES - head.len();
        head.extend_from_slice(&received[..received.len().min(room)]);
        let (response, method) = match Request::parse(head, &mut [httparse::EMPTY_HEADER; MAX_HEADERS]) {
            Ok(Some(request)) => (respond(&request), Some(request.method)),
            Ok(None) if head.len() < MAX_HEAD_BYTES => return None,
            Ok(None) => (Response::too_large(), None),
            Err(response) => (response, None),
        };
        self.state = State::Response {
            bytes: response.encode(method),
            sent: 0,
            began: now,
            progress: now,
        };
        Some(response.code)
    }

    /// Takes notice that the peer will send nothing more. Without a complete request that ends the connection.
    pub fn peer_closed(&mut self, now: Duration) {
        if let State::Head { .. } = self.state {
            self.state = State::Closing { began: now };
        }
    }

    /// The bytes to send next.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        match &self.state {
            State::Response { bytes, sent, .. } => &bytes[*sent..],
            State::Head { .. } | State::Closing { .. } => &[],
        }
    }

    /// Takes notice that the first `count` bytes of [`pending`](Self::pending) have been sent.
    ///
    /// # Panics
    /// If fewer are pending.
    pub fn sent(&mut self, count: usize, now: Duration) {
        assert!(count <= self.pending().len(), "more bytes sent than were pending");
        if let State::Response {
            bytes,
            sent,
            progress,
            ..
        } = &mut self.state
            && count > 0
        {
            *sent += count;
            *progress = now;
            if *sent == bytes.len() {
                self.state = State::Closing { began: now };
            }
        }
    }

    /// What to do with the socket at `now`.
    #[must_use]
    pub fn poll(&self, now: Duration) -> Action {
        let (began, timeout, action) = match self.state {
            State::Head { began, .. } => (began, HEAD_TIMEOUT, Action::Keep),
            State::Response { began, .. } => (began, RESPONSE_TIMEOUT, Action::Keep),
            State::Closing { began } => (began, CLOSE_TIMEOUT, Action::Close),
        };
        if now.saturating_sub(began) >= timeout {
            Action::Abort
        } else {
            action
        }
    }

    /// How long the peer has kept the connection from going on, at `now`. A head that trickles in does not count as going
    /// on before it is complete.
    #[must_use]
    pub fn stalled_for(&self, now: Duration) -> Duration {
        now.saturating_sub(match self.state {
            State::Head { began, .. } | State::Closing { began } => began,
            State::Response { progress, .. } => progress,
        })
    }
}
