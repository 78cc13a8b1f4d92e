//! Server reflection of gRPC: the target describes its echo service.
//!
//! `echo_descriptor.bin` is the `FileDescriptorProto` of `examples/protocols/echo.proto`; a test
//! compares the two.

use crate::grpc::varint;

const ECHO: &[u8] = include_bytes!("echo_descriptor.bin");
const ECHO_FILE: &[u8] = b"echo.proto";
const ECHO_SERVICE: &[u8] = b"hyperscale.Echo";
const NOT_FOUND: u8 = 5;

/// Fields of a question.
const FILE_BY_NAME: u64 = 3;
const FILE_OF_SYMBOL: u64 = 4;
const LIST_SERVICES: u64 = 7;
/// Fields of an answer.
const FILES: u8 = 4;
const SERVICES: u8 = 6;
const ERROR: u8 = 7;

/// The answer to one message of `ServerReflectionInfo`.
#[must_use]
pub fn answer(question: &[u8]) -> Vec<u8> {
    let found = match asked(question) {
        Some((LIST_SERVICES, _)) => Some((SERVICES, field(1, &field(1, ECHO_SERVICE)))),
        Some((FILE_BY_NAME, name)) if name == ECHO_FILE => Some((FILES, field(1, ECHO))),
        Some((FILE_OF_SYMBOL, name)) if name.starts_with(ECHO_SERVICE) => {
            Some((FILES, field(1, ECHO)))
        }
        _ => None,
    };
    match found {
        Some((number, value)) => field(number, &value),
        None => {
            let words = field(2, b"it is not described here");
            field(ERROR, &[&[0x08, NOT_FOUND][..], &words].concat())
        }
    }
}

/// The first question of a message: its field and its text.
fn asked(message: &[u8]) -> Option<(u64, &[u8])> {
    let mut rest = message;
    while let Some(key) = varint(&mut rest) {
        if key & 7 != 2 {
            return None;
        }
        let length = usize::try_from(varint(&mut rest)?).ok()?;
        let (value, after) = rest.split_at_checked(length)?;
        if matches!(key >> 3, FILE_BY_NAME | FILE_OF_SYMBOL | LIST_SERVICES) {
            return Some((key >> 3, value));
        }
        rest = after;
    }
    None
}

/// A field that has a length.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = value.len();
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(value);
    out
}

#[cfg(test)]
mod tests {
    use super::{answer, ECHO};

    #[test]
    fn services_and_files_are_described_and_others_are_not() {
        let listed = answer(&[0x3a, 1, b'*']);
        assert!(listed.windows(15).any(|window| window == b"hyperscale.Echo"));
        let by_name = answer(&[&[0x1a, 10][..], b"echo.proto"].concat());
        assert!(by_name.ends_with(ECHO));
        for wrong in [&[0x22, 1, b'x'][..], &[], &[0x22, 9, b'x'], &[0x08, 1]] {
            assert_eq!(answer(wrong).first(), Some(&0x3a), "{wrong:?}");
        }
    }
}
