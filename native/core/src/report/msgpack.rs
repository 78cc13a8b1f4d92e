//! The subset of MessagePack that reports are written in. The reader copies nothing, allocates
//! nothing and trusts no length before it has seen that many bytes.

use super::DecodeError;

type Read<T> = Result<T, DecodeError>;

pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub const fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Room to reserve for `count` values of at least `bytes_min` bytes each.
    pub fn room(&self, count: usize, bytes_min: usize) -> usize {
        count.min(self.rest.len() / bytes_min)
    }

    fn byte(&mut self) -> Read<u8> {
        let (&first, rest) = self.rest.split_first().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(first)
    }

    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn big_endian(&mut self, bytes: usize) -> Read<u64> {
        Ok(self.take(bytes)?.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn length(&mut self, bytes: usize) -> Read<usize> {
        usize::try_from(self.big_endian(bytes)?).map_err(|_| DecodeError::Truncated)
    }

    /// Consumes a nil if one is next.
    pub fn nil(&mut self) -> bool {
        match self.rest.split_first() {
            Some((&0xc0, rest)) => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    pub fn uint(&mut self) -> Read<u64> {
        let lead = self.byte()?;
        self.uint_after(lead)?.ok_or(DecodeError::Expected("a whole number of 0 or more"))
    }

    /// The number that `lead` begins; None if it begins something else or a negative number.
    fn uint_after(&mut self, lead: u8) -> Read<Option<u64>> {
        let bytes = match lead {
            0..=0x7f => return Ok(Some(u64::from(lead))),
            0xcc..=0xcf => return self.big_endian(1 << (lead - 0xcc)).map(Some),
            0xd0..=0xd3 => 1 << (lead - 0xd0),
            _ => return Ok(None),
        };
        let number = self.big_endian(bytes)?;
        let is_negative = number >> (8 * bytes - 1) == 1;
        Ok((!is_negative).then_some(number))
    }

    /// Any number, whole ones included.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    pub fn float(&mut self) -> Read<f64> {
        Ok(match self.byte()? {
            0xca => f64::from(f32::from_bits(self.big_endian(4)? as u32)),
            0xcb => f64::from_bits(self.big_endian(8)?),
            negative @ 0xe0..=0xff => f64::from(negative as i8),
            0xd0 => f64::from(self.big_endian(1)? as i8),
            0xd1 => f64::from(self.big_endian(2)? as i16),
            0xd2 => f64::from(self.big_endian(4)? as i32),
            0xd3 => self.big_endian(8)? as i64 as f64,
            lead => self.uint_after(lead)?.ok_or(DecodeError::Expected("a number"))? as f64,
        })
    }

    pub fn text(&mut self) -> Read<&'a str> {
        let count = match self.byte()? {
            short @ 0xa0..=0xbf => usize::from(short & 0x1f),
            long @ 0xd9..=0xdb => self.length(1 << (long - 0xd9))?,
            _ => return Err(DecodeError::Expected("a string")),
        };
        std::str::from_utf8(self.take(count)?).map_err(|_| DecodeError::Expected("UTF-8"))
    }

    pub fn bytes(&mut self) -> Read<&'a [u8]> {
        let count = match self.byte()? {
            lead @ 0xc4..=0xc6 => self.length(1 << (lead - 0xc4))?,
            _ => return Err(DecodeError::Expected("bytes")),
        };
        self.take(count)
    }

    /// The number of elements of the array that is next.
    pub fn array(&mut self) -> Read<usize> {
        match self.byte()? {
            short @ 0x90..=0x9f => Ok(usize::from(short & 0x0f)),
            long @ 0xdc..=0xdd => self.length(2 << (long - 0xdc)),
            _ => Err(DecodeError::Expected("an array")),
        }
    }

    /// The number of pairs of the map that is next.
    pub fn map(&mut self) -> Read<usize> {
        match self.byte()? {
            short @ 0x80..=0x8f => Ok(usize::from(short & 0x0f)),
            long @ 0xde..=0xdf => self.length(2 << (long - 0xde)),
            _ => Err(DecodeError::Expected("a map")),
        }
    }

    /// Passes over one value of any kind and returns its bytes. Nesting costs no stack.
    pub fn raw(&mut self) -> Read<&'a [u8]> {
        let before = self.rest;
        let mut left: usize = 1;
        while left > 0 {
            left -= 1;
            let (body, values) = match self.byte()? {
                0..=0x7f | 0xc0 | 0xc2..=0xc3 | 0xe0..=0xff => (0, 0),
                short @ 0x80..=0x8f => (0, 2 * usize::from(short & 0x0f)),
                short @ 0x90..=0x9f => (0, usize::from(short & 0x0f)),
                short @ 0xa0..=0xbf => (usize::from(short & 0x1f), 0),
                lead @ 0xc4..=0xc6 => (self.length(1 << (lead - 0xc4))?, 0),
                lead @ 0xc7..=0xc9 => (self.length(1 << (lead - 0xc7))?.saturating_add(1), 0),
                0xca => (4, 0),
                0xcb => (8, 0),
                lead @ 0xcc..=0xcf => (1 << (lead - 0xcc), 0),
                lead @ 0xd0..=0xd3 => (1 << (lead - 0xd0), 0),
                lead @ 0xd4..=0xd8 => (1 + (1 << (lead - 0xd4)), 0),
                lead @ 0xd9..=0xdb => (self.length(1 << (lead - 0xd9))?, 0),
                lead @ 0xdc..=0xdd => (0, self.length(2 << (lead - 0xdc))?),
                lead @ 0xde..=0xdf => (0, self.length(2 << (lead - 0xde))?.saturating_mul(2)),
                0xc1 => return Err(DecodeError::Expected("a value")),
            };
            self.take(body)?;
            left = left.saturating_add(values);
        }
        let passed = before.len() - self.rest.len();
        Ok(before.get(..passed).unwrap_or_default())
    }
}

#[derive(Default)]
pub struct Writer {
    pub out: Vec<u8>,
}

impl Writer {
    fn sized(&mut self, lead: u8, count: usize, bytes: usize) {
        self.out.push(lead);
        let count = count as u64;
        self.out.extend(count.to_be_bytes().iter().skip(8 - bytes));
    }

    pub fn uint(&mut self, number: u64) {
        match number {
            0..=0x7f => self.out.extend(number.to_be_bytes().last()),
            0x80..=0xff => self.number(0xcc, number, 1),
            0x100..=0xffff => self.number(0xcd, number, 2),
            0x1_0000..=0xffff_ffff => self.number(0xce, number, 4),
            _ => self.number(0xcf, number, 8),
        }
    }

    fn number(&mut self, lead: u8, number: u64, bytes: usize) {
        self.out.push(lead);
        self.out.extend_from_slice(number.to_be_bytes().get(8 - bytes..).unwrap_or_default());
    }

    pub fn float(&mut self, number: f64) {
        self.out.push(0xcb);
        self.out.extend_from_slice(&number.to_be_bytes());
    }

    #[allow(clippy::cast_possible_truncation)]
    pub fn text(&mut self, text: &str) {
        match text.len() {
            short @ 0..=0x1f => self.out.push(0xa0 | short as u8),
            count @ 0x20..=0xff => self.sized(0xd9, count, 1),
            count @ 0x100..=0xffff => self.sized(0xda, count, 2),
            count => self.sized(0xdb, count, 4),
        }
        self.out.extend_from_slice(text.as_bytes());
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        match bytes.len() {
            count @ 0..=0xff => self.sized(0xc4, count, 1),
            count @ 0x100..=0xffff => self.sized(0xc5, count, 2),
            count => self.sized(0xc6, count, 4),
        }
        self.out.extend_from_slice(bytes);
    }

    #[allow(clippy::cast_possible_truncation)]
    pub fn array(&mut self, count: usize) {
        match count {
            0..=0x0f => self.out.push(0x90 | count as u8),
            0x10..=0xffff => self.sized(0xdc, count, 2),
            _ => self.sized(0xdd, count, 4),
        }
    }

    #[allow(clippy::cast_possible_truncation)]
    pub fn map(&mut self, count: usize) {
        match count {
            0..=0x0f => self.out.push(0x80 | count as u8),
            0x10..=0xffff => self.sized(0xde, count, 2),
            _ => self.sized(0xdf, count, 4),
        }
    }
}
