//! The wire format: numbered fields of four kinds.

/// Bytes that are no protobuf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end within a field.
    #[error("unexpected EOF")]
    UnexpectedEnd,
    /// A number takes more than ten bytes.
    #[error("integer overflow")]
    Overflow,
    /// There is no such kind of field, or not for this one.
    #[error("illegal wireType {0}")]
    IllegalKind(u8),
    /// Field 0 does not exist.
    #[error("illegal tag {0}")]
    IllegalNumber(u64),
}

/// What a field carries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Payload<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

impl<'a> Payload<'a> {
    pub(super) fn varint(self) -> Result<u64, WireError> {
        if let Payload::Varint(value) = self {
            Ok(value)
        } else {
            Err(self.illegal())
        }
    }

    pub(super) fn fixed64(self) -> Result<u64, WireError> {
        if let Payload::Fixed64(value) = self {
            Ok(value)
        } else {
            Err(self.illegal())
        }
    }

    pub(super) fn bytes(self) -> Result<&'a [u8], WireError> {
        if let Payload::Bytes(bytes) = self {
            Ok(bytes)
        } else {
            Err(self.illegal())
        }
    }

    fn illegal(self) -> WireError {
        WireError::IllegalKind(match self {
            Payload::Varint(_) => 0,
            Payload::Fixed64(_) => 1,
            Payload::Bytes(_) => 2,
            Payload::Fixed32 => 5,
        })
    }
}

/// A number of 32 bits. Negative ones are written with their sign extended to 64 bits; what is above is cut off.
#[expect(clippy::cast_possible_truncation, reason = "that is the rule")]
pub(super) fn int32(varint: u64) -> i32 {
    varint.cast_signed() as i32
}

/// Reads the fields of a message one after the other.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// The next field and its number, or nothing at the end.
    pub(super) fn field(&mut self) -> Result<Option<(u32, Payload<'a>)>, WireError> {
        loop {
            if self.rest.is_empty() {
                return Ok(None);
            }
            let tag = self.varint()?;
            let number = u32::try_from(tag >> 3).ok().filter(|number| *number > 0);
            let number = number.ok_or(WireError::IllegalNumber(tag >> 3))?;
            let payload = match tag & 7 {
                0 => Payload::Varint(self.varint()?),
                1 => {
                    let bytes = self.take(8)?;
                    Payload::Fixed64(u64::from_le_bytes(bytes.try_into().expect("eight bytes were taken")))
                }
                2 => {
                    let length = usize::try_from(self.varint()?).map_err(|_| WireError::UnexpectedEnd)?;
                    Payload::Bytes(self.take(length)?)
                }
                3 => {
                    self.skip_group()?;
                    continue;
                }
                5 => {
                    self.take(4)?;
                    Payload::Fixed32
                }
                kind => return Err(WireError::IllegalKind(u8::try_from(kind).expect("three bits"))),
            };
            return Ok(Some((number, payload)));
        }
    }

    /// The next number of a packed list, or nothing at the end.
    pub(super) fn packed_varint(&mut self) -> Result<Option<u64>, WireError> {
        if self.rest.is_empty() {
            Ok(None)
        } else {
            self.varint().map(Some)
        }
    }

    /// Groups are long obsolete; unknown ones are skipped, however deep, without recursion.
    fn skip_group(&mut self) -> Result<(), WireError> {
        let mut open = 1_u32;
        while open > 0 {
            let tag = self.varint()?;
            match tag & 7 {
                0 => drop(self.varint()?),
                1 => drop(self.take(8)?),
                2 => {
                    let length = usize::try_from(self.varint()?).map_err(|_| WireError::UnexpectedEnd)?;
                    self.take(length)?;
                }
                3 => open += 1,
                4 => open -= 1,
                5 => drop(self.take(4)?),
                kind => return Err(WireError::IllegalKind(u8::try_from(kind).expect("three bits"))),
            }
        }
        Ok(())
    }

    fn varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(WireError::UnexpectedEnd)?;
            self.rest = rest;
            // The tenth byte holds one bit; Go drops the others without a word.
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(WireError::Overflow)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(WireError::UnexpectedEnd)?;
        self.rest = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_field_is_read_and_groups_are_skipped() {
        let bytes = [
            0x08, 0x96, 0x01, // 1: varint 150
            0x12, 0x02, b'h', b'i', // 2: bytes
            0x1b, 0x08, 0x01, 0x1b, 0x1c, 0x1c, // 3: a group within a group
            0x21, 1, 0, 0, 0, 0, 0, 0, 0, // 4: fixed 64
            0x2d, 1, 0, 0, 0, // 5: fixed 32
        ];
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.field(), Ok(Some((1, Payload::Varint(150)))));
        assert_eq!(reader.field(), Ok(Some((2, Payload::Bytes(b"hi")))));
        assert_eq!(reader.field(), Ok(Some((4, Payload::Fixed64(1)))));
        assert_eq!(reader.field(), Ok(Some((5, Payload::Fixed32))));
        assert_eq!(reader.field(), Ok(None));
    }

    #[test]
    fn broken_bytes_are_errors() {
        for (bytes, error) in [
            (&[0x08][..], WireError::UnexpectedEnd),
            (&[0x12, 0x05, 1], WireError::UnexpectedEnd),
            (
                &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
                WireError::UnexpectedEnd,
            ),
            (
                &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                WireError::Overflow,
            ),
            (&[0x00, 0x00], WireError::IllegalNumber(0)),
            (&[0x0f, 0x00], WireError::IllegalKind(7)),
            (&[0x0c], WireError::IllegalKind(4)),
            (&[0x0b, 0x08], WireError::UnexpectedEnd),
        ] {
            assert_eq!(Reader::new(bytes).field(), Err(error), "{bytes:?}");
        }
    }

    #[test]
    fn negative_numbers_take_ten_bytes() {
        let bytes = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(Reader::new(&bytes).field(), Ok(Some((1, Payload::Varint(u64::MAX)))));
    }
}
