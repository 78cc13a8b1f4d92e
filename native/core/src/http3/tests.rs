//! Examples of the standard, every split of frames, and what has to be refused.

use super::frame::{self, kind, FrameReader, Piece, FRAME_BYTES_MAX};
use super::qpack::{self, Secrecy};

fn decoded(block: &[u8]) -> Result<Vec<(String, String)>, crate::http2::text::Broken> {
    let mut fields = Vec::new();
    qpack::decode(block, 65_536, &mut Vec::new(), |name, value| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        fields.push((text(name), text(value)));
    })?;
    Ok(fields)
}

#[test]
fn what_is_encoded_is_decoded() {
    let fields = [
        (":method", "GET", Secrecy::Open),
        (":path", "/index.html", Secrecy::Open),
        ("authorization", "secret", Secrecy::NeverIndexed),
        ("x-own", "value", Secrecy::Open),
        ("x-empty", "", Secrecy::NeverIndexed),
    ];
    let mut block = qpack::PREFIX.to_vec();
    for (name, value, secrecy) in fields {
        qpack::encode(&mut block, name, value.as_bytes(), secrecy);
    }
    assert_eq!(block[2], 0xd1); // GET is an entry of the static table
    let expected: Vec<_> = fields.iter().map(|(n, v, _)| ((*n).into(), (*v).into())).collect();
    assert_eq!(decoded(&block).unwrap(), expected);
}

#[test]
fn the_example_of_the_standard_is_decoded() {
    // RFC 9204, appendix B.1.
    let block = b"\x00\x00\x51\x0b/index.html";
    assert_eq!(decoded(block).unwrap(), [(":path".to_owned(), "/index.html".to_owned())]);
}

#[test]
fn blocks_that_need_a_dynamic_table_or_are_cut_off_are_broken() {
    let blocks: [&[u8]; 8] = [
        b"",
        b"\x00",
        b"\x01\x00",          // an entry of the dynamic table is needed
        b"\x00\x00\x80",      // refers to it
        b"\x00\x00\x10",      // refers to it, after the base
        b"\x00\x00\xff\x7f",  // no such static entry
        b"\x00\x00\x51\x0b/", // the value is cut off
        b"\x00\x00\x2f",      // so is the length
    ];
    for block in blocks {
        assert!(decoded(block).is_err(), "{block:x?}");
    }
    assert!(qpack::are_instructions_allowed(b"\x20") && !qpack::are_instructions_allowed(b"\x3f"));
}

#[test]
fn a_bomb_is_not_emitted() {
    let mut block = qpack::PREFIX.to_vec();
    block.extend([0xc0 | 41; 10_000]); // "cache-control: public, max-age=31536000"
    let mut emitted = 0;
    let fits = qpack::decode(&block, 65_536, &mut Vec::new(), |_, value| emitted += value.len());
    assert_eq!(fits, Ok(false));
    assert!(emitted <= 65_536, "{emitted}");
}

#[test]
fn numbers_of_every_length_survive() {
    for value in [0, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, (1 << 62) - 1] {
        let mut out = Vec::new();
        frame::write_number(&mut out, value);
        assert_eq!(frame::read_number(&out), Some((value, out.len())));
        assert_eq!(frame::read_number(&out[..out.len() - 1]), None);
    }
}

#[test]
fn frames_are_the_same_however_they_are_split() {
    let mut bytes = Vec::new();
    frame::write_settings(&mut bytes, &[(1, 0), (6, 65_536)]);
    frame::write_head(&mut bytes, kind::HEADERS, 300);
    bytes.extend([7; 300]);
    frame::write_head(&mut bytes, kind::DATA, 5);
    bytes.extend(b"hello");
    frame::write_head(&mut bytes, 0x21, 3); // a reserved type: skipped
    bytes.extend(b"abc");
    frame::write_goaway(&mut bytes, 8);
    let read = |size: usize| {
        let mut reader = FrameReader::default();
        let (mut frames, mut data, mut unknown) = (Vec::new(), Vec::new(), 0);
        for mut piece in bytes.chunks(size) {
            while let Some(piece) = reader.next(&mut piece).unwrap() {
                match piece {
                    Piece::Data(bytes) => data.extend_from_slice(bytes),
                    Piece::Frame(kind, payload) => frames.push((kind, payload.to_vec())),
                    Piece::Unknown => unknown += 1,
                }
            }
        }
        assert!(!reader.is_inside());
        (frames, data, unknown)
    };
    let whole = read(bytes.len());
    assert_eq!((whole.0.len(), whole.1.as_slice(), whole.2), (3, &b"hello"[..], 1));
    assert_eq!(frame::number(&whole.0[2].1), Ok(8));
    for size in [1, 2, 3, 7, 100] {
        assert_eq!(read(size), whole, "{size}");
    }
}

#[test]
fn wrong_frames_are_violations() {
    let mut http2 = Vec::new();
    frame::write_head(&mut http2, 0x6, 0);
    assert!(FrameReader::default().next(&mut &http2[..]).is_err());
    let mut large = Vec::new();
    frame::write_head(&mut large, kind::HEADERS, FRAME_BYTES_MAX + 1);
    assert!(FrameReader::default().next(&mut &large[..]).is_err());
    assert!(frame::check_settings(&[0x2, 0]).is_err());
    assert!(frame::check_settings(&[0x1, 0, 0x1, 0]).is_err());
    assert!(frame::check_settings(&[0x1, 0, 0x6, 0x40]).is_err());
    assert_eq!(frame::check_settings(&[0x1, 0, 0x6, 0x40, 0x80]), Ok(()));
}
