//! Frames and header compression against the examples of the standards, however they are split.

use super::frame::{self, FrameReader, Violation};
use super::hpack::{encode, Broken, Decoder, Secrecy};
use super::huffman;

fn decoded(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, Broken> {
    let mut fields = Vec::new();
    decoder.decode(block, 1 << 16, |name, value| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        fields.push((text(name), text(value)));
    })?;
    Ok(fields)
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| b.is_ascii_hexdigit()).collect();
    let digit = |b: u8| (b as char).to_digit(16).unwrap() as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn pairs(fields: &[(&str, &str)]) -> Vec<(String, String)> {
    fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn the_responses_of_the_standard_are_decoded_with_evictions() {
    // RFC 7541, appendix C.6, whose table has 256 bytes.
    let mut decoder = Decoder::default();
    let first =
        "3fe101 4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
        2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3";
    let cached = [
        (":status", "302"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ];
    assert_eq!(decoded(&mut decoder, &hex(first)).unwrap(), pairs(&cached));
    let second = decoded(&mut decoder, &hex("4883 640e ffc1 c0bf")).unwrap();
    assert_eq!(second[0], (":status".to_owned(), "307".to_owned()));
    assert_eq!(second[1..], pairs(&cached)[1..]);
    let third =
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad
        94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587
        3160 65c0 03ed 4ee5 b106 3d50 07";
    let third = decoded(&mut decoder, &hex(third)).unwrap();
    assert_eq!(third[3], ("location".to_owned(), "https://www.example.com".to_owned()));
    assert_eq!(third[5].1, "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1");
}

#[test]
fn what_is_encoded_is_decoded() {
    let all: Vec<u8> = (0..=255).collect();
    let mut block = Vec::new();
    encode(&mut block, ":method", b"GET", Secrecy::Open);
    encode(&mut block, "x-own", &all, Secrecy::Open);
    encode(&mut block, "authorization", b"secret", Secrecy::NeverIndexed);
    encode(&mut block, ":authority", b"", Secrecy::Open);
    assert_eq!(block[0], 0x82);
    let mut fields = Vec::new();
    let mut decoder = Decoder::default();
    let fits = decoder.decode(&block, 4096, |n, v| fields.push((n.to_vec(), v.to_vec())));
    assert_eq!(fits, Ok(true));
    assert_eq!(fields[1], (b"x-own".to_vec(), all));
    assert_eq!(fields[2], (b"authorization".to_vec(), b"secret".to_vec()));
    assert_eq!(fields[3], (b":authority".to_vec(), Vec::new()));
}

#[test]
fn every_byte_survives_the_huffman_code() {
    for byte in 0..=255_u8 {
        for count in 1..12 {
            let text = vec![byte; count];
            let (mut code, mut back) = (Vec::new(), Vec::new());
            huffman::encode(&text, &mut code);
            assert_eq!(code.len(), huffman::encoded_len(&text));
            assert_eq!(huffman::decode(&code, &mut back), Some(()));
            assert_eq!(back, text);
        }
    }
    for broken in [&[0xff_u8][..], &[0xff, 0xff, 0xff, 0xff], &[0x00]] {
        assert_eq!(huffman::decode(broken, &mut Vec::new()), None, "{broken:x?}");
    }
}

#[test]
fn broken_blocks_are_errors_and_bombs_are_not_emitted() {
    for block in ["80", "be", "ff", "ffffffffffff7f", "40", "4003", "3fe13f", "0005", "82 20"] {
        assert!(decoded(&mut Decoder::default(), &hex(block)).is_err(), "{block}");
    }
    let mut decoder = Decoder::default();
    let mut block = Vec::from(*b"\x40\x01a\x7f\xa1\x1e");
    block.extend([b'x'; 4000]);
    block.extend([0xbe; 60_000]);
    let mut emitted = 0;
    let fits = decoder.decode(&block, 65_536, |_, value| emitted += value.len());
    assert_eq!(fits, Ok(false));
    assert!(emitted <= 65_536, "{emitted}");
}

#[test]
fn frames_are_the_same_however_they_are_split() {
    let mut bytes = Vec::new();
    frame::write_settings(&mut bytes, &[(1, 2), (3, 4)]);
    frame::write_headers(&mut bytes, 1, [&[7; 20_000], &[8; 9]], true);
    frame::write_window_update(&mut bytes, 1, 99);
    let read = |size: usize| {
        let mut reader = FrameReader::default();
        let mut frames = Vec::new();
        for mut piece in bytes.chunks(size) {
            while let Some((head, payload)) = reader.next(&mut piece).unwrap() {
                frames.push((head, payload.to_vec()));
            }
        }
        frames
    };
    let whole = read(bytes.len());
    assert_eq!(whole.len(), 4);
    assert_eq!(whole[2].1.len(), 20_009 - 16_384);
    for size in [1, 2, 8, 9, 10, 100, 16_400] {
        assert_eq!(read(size), whole, "{size}");
    }
}

#[test]
fn wrong_frames_are_violations() {
    let mut reader = FrameReader::default();
    let large = [0, 0x40, 1, 0, 0, 0, 0, 0, 1];
    assert!(matches!(reader.next(&mut &large[..]), Err(Violation { .. })));
    let head = frame::FrameHead { length: 2, kind: 0, flags: frame::flag::PADDED, stream: 1 };
    assert!(frame::unpadded(head, &[5, 0]).is_err());
    assert_eq!(frame::unpadded(head, &[1, 9, 0]), Ok(&[9][..]));
    assert!(frame::settings(&[0; 5]).is_err() && frame::goaway(&[0; 7]).is_err());
    assert!(frame::number(&[0; 5]).is_err());
}
