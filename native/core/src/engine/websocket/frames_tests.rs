#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;

const MASK: [u8; 4] = [1, 2, 3, 250];

fn decoder(role: Role) -> Decoder {
    Decoder::new(role, 1000, true)
}

fn read(role: Role, bytes: &[u8]) -> Result<Vec<Event>, FrameError> {
    read_in_pieces(role, bytes, bytes.len().max(1))
}

fn read_in_pieces(role: Role, bytes: &[u8], piece: usize) -> Result<Vec<Event>, FrameError> {
    let (mut decoder, mut deflate) = (decoder(role), Deflate::default());
    let mut events = Vec::new();
    for mut input in bytes.chunks(piece) {
        while let Some(event) = decoder.next(&mut input, &mut deflate)? {
            events.push(event);
        }
        assert!(input.is_empty());
    }
    Ok(events)
}

fn text(data: &str) -> Event {
    Event::Message { is_text: true, data: data.as_bytes().to_vec() }
}

#[test]
fn frames_read_as_they_were_written_whole_and_byte_by_byte() {
    for (role, mask) in [(Role::Client, None), (Role::Server, Some(MASK))] {
        for length in [0, 1, 7, 8, 125, 126, 700] {
            let data = vec![b'x'; length];
            let mut bytes = Vec::new();
            write_frame(&mut bytes, Opcode::Binary, &data, false, mask);
            write_frame(&mut bytes, Opcode::Ping, b"hi", false, mask);
            write_close(&mut bytes, 1001, "bye", mask);
            let expected = vec![
                Event::Message { is_text: false, data },
                Event::Ping(b"hi".to_vec()),
                Event::Close { code: 1001, reason: "bye".to_owned() },
            ];
            for piece in [1, 2, 3, 5, bytes.len()] {
                assert_eq!(read_in_pieces(role, &bytes, piece).unwrap(), expected, "{length}");
            }
        }
    }
}

#[test]
fn a_long_message_has_a_64_bit_length() {
    let data = vec![7; 70_000];
    let mut bytes = Vec::new();
    write_frame(&mut bytes, Opcode::Binary, &data, false, None);
    let mut decoder = Decoder::new(Role::Client, 1 << 20, false);
    let event = decoder.next(&mut &bytes[..], &mut Deflate::default()).unwrap();
    assert_eq!(event, Some(Event::Message { is_text: false, data }));
}

#[test]
fn fragments_make_one_message_and_control_frames_come_between() {
    let bytes = b"\x01\x02he\x89\x00\x80\x03llo";
    assert_eq!(read(Role::Client, bytes).unwrap(), [Event::Ping(vec![]), text("hello")]);
}

#[test]
fn compressed_messages_inflate_each_by_itself() {
    let mut deflate = Deflate::default();
    let mut bytes = Vec::new();
    let long = "again and ".repeat(90);
    for message in [long.as_str(), "", "short", long.as_str()] {
        let packed = deflate.deflate(message.as_bytes());
        write_frame(&mut bytes, Opcode::Text, &packed, true, None);
    }
    assert!(bytes.len() < 200);
    let events = read_in_pieces(Role::Client, &bytes, 3).unwrap();
    assert_eq!(events, [text(&long), text(""), text("short"), text(&long)]);
}

#[test]
fn a_message_over_the_limit_is_refused_before_it_is_read() {
    let too_big = |bytes: &[u8]| read(Role::Client, bytes).unwrap_err().code == TOO_BIG;
    assert!(too_big(b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff"));
    assert!(too_big(b"\x82\x7e\x03\xe9"));
    let packed = Deflate::default().deflate(&vec![0; 100_000]);
    let mut bomb = Vec::new();
    write_frame(&mut bomb, Opcode::Binary, &packed, true, None);
    assert!(too_big(&bomb));
}

#[test]
fn what_the_standard_forbids_is_an_error_with_its_close_code() {
    for (bytes, code, what) in [
        (&b"\x83\x00"[..], PROTOCOL_ERROR, "opcode"),
        (b"\x81\x80\x01\x02\x03\x04", PROTOCOL_ERROR, "masked"),
        (b"\xa1\x00", PROTOCOL_ERROR, "reserved"),
        (b"\x80\x00", PROTOCOL_ERROR, "continues nothing"),
        (b"\x01\x00\x81\x00", PROTOCOL_ERROR, "inside another"),
        (b"\x09\x00", PROTOCOL_ERROR, "control frame"),
        (b"\x89\x7e\x00\x80", PROTOCOL_ERROR, "control frame"),
        (b"\xc9\x00", PROTOCOL_ERROR, "control frame"),
        (b"\x88\x01\x03", PROTOCOL_ERROR, "half a code"),
        (b"\x88\x02\x03\xed", PROTOCOL_ERROR, "1005"),
        (b"\x88\x03\x03\xe8\xff", BAD_TEXT, "UTF-8"),
        (b"\x81\x01\xff", BAD_TEXT, "UTF-8"),
        (b"\xc1\x03\xff\xff\xff", PROTOCOL_ERROR, "broken"),
    ] {
        let error = read(Role::Client, bytes).unwrap_err();
        assert!(error.code == code && error.detail.contains(what), "{bytes:?}: {error:?}");
    }
    assert!(read(Role::Server, b"\x81\x00").unwrap_err().detail.contains("did not mask"));
}

#[test]
fn masks_continue_where_the_last_piece_ended() {
    let original: Vec<u8> = (0..50).collect();
    let mut whole = original.clone();
    apply_mask(&mut whole, MASK, 0);
    for cut in 0..original.len() {
        let mut pieces = original.clone();
        let (first, second) = pieces.split_at_mut(cut);
        apply_mask(first, MASK, 0);
        apply_mask(second, MASK, cut);
        assert_eq!(pieces, whole);
    }
}
