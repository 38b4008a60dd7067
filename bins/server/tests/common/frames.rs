//! HTTP/2 by hand, for peers that do what no library would.

/// The client's introduction, with empty settings.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
/// The same, with a window of 0 for every stream: no answer's body may be sent.
pub(crate) const DEAF_PREFACE: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a call that stays open.
pub(crate) fn head(stream: u32, path: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
    let fields = [
        vec![0x83, 0x86], // POST, http
        [vec![0x04], text(path)].concat(),
        [vec![0x01], text("server")].concat(),
        [vec![0x0f, 0x10], text("application/grpc")].concat(),
        [vec![0x00], text("te"), text("trailers")].concat(),
    ];
    frame(HEADERS, END_HEADERS, stream, &fields.concat())
}

/// A part of a call's request.
pub(crate) fn data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, 0, stream, bytes)
}

/// The last part of a call's request.
pub(crate) fn last(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, END_STREAM, stream, bytes)
}

/// What must be said to the frames in `received`, which loses those that are whole: settings and pings are acknowledged.
pub(crate) fn courtesies(received: &mut Vec<u8>) -> Vec<u8> {
    let mut answers = Vec::new();
    while let [a, b, c, kind, flags, _, _, _, _, rest @ ..] = &received[..] {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some(payload) = rest.get(..length) else { break };
        match (*kind, flags & ACK) {
            (SETTINGS, 0) => answers.extend(frame(SETTINGS, ACK, 0, b"")),
            (PING, 0) => answers.extend(frame(PING, ACK, 0, payload)),
            _ => {}
        }
        received.drain(..9 + length);
    }
    answers
}
