//! Fields of a frame. Numbers are big-endian. A text is a length of two bytes and its UTF-8.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

use crate::text::Text;

/// Decode error of a frame. After an error the rest of the stream cannot be trusted: the reader
/// closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The length prefix is zero or exceeds [`crate::MAX_BODY`].
    #[error("a frame of {0} bytes")]
    Length(u32),
    /// This version defines no frame of this kind in this direction.
    #[error("frame kind {0} is unknown")]
    Kind(u8),
    /// The frame ends inside a field.
    #[error("a frame ends too early")]
    Short,
    /// The frame has bytes after its last field.
    #[error("a frame has bytes after its last field")]
    Trailing,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Utf8,
    /// A text exceeds the maximum length of its field.
    #[error("a text of {0} bytes is too long for its field")]
    TextTooLong(u16),
    /// A field has an invalid value.
    #[error("{0} has a value that it cannot have")]
    Value(&'static str),
}

/// Reads the fields of one frame in order.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(FrameError::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FrameError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FrameError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FrameError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Reads a presence byte (0 or 1), then the field if the byte is 1.
    pub(crate) fn optional<T>(
        &mut self,
        name: &'static str,
        field: impl FnOnce(&mut Self) -> Result<T, FrameError>,
    ) -> Result<Option<T>, FrameError> {
        match self.u8()? {
            0 => Ok(None),
            1 => field(self).map(Some),
            _ => Err(FrameError::Value(name)),
        }
    }

    pub(crate) fn text<const MAX: usize>(&mut self) -> Result<Text<MAX>, FrameError> {
        let length = self.u16()?;
        let (head, rest) = self
            .rest
            .split_at_checked(length.into())
            .ok_or(FrameError::Short)?;
        self.rest = rest;
        let text = std::str::from_utf8(head).map_err(|_| FrameError::Utf8)?;
        Text::new(text).ok_or(FrameError::TextTooLong(length))
    }

    pub(crate) fn ip(&mut self) -> Result<IpAddr, FrameError> {
        match self.u8()? {
            4 => Ok(Ipv4Addr::from(self.array::<4>()?).into()),
            6 => Ok(Ipv6Addr::from(self.array::<16>()?).into()),
            _ => Err(FrameError::Value("IP family")),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn end(self) -> Result<(), FrameError> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Trailing)
        }
    }
}

/// Writes one frame: a placeholder for the length, the kind, the fields, then the length.
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

/// Bytes of the length prefix.
pub(crate) const LENGTH: usize = 4;

impl Writer {
    pub(crate) fn new(kind: u8) -> Self {
        let mut bytes = vec![0; LENGTH];
        bytes.push(kind);
        Self { bytes }
    }

    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.bytes.push(value);
        self
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn optional<T>(self, value: Option<T>, field: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            None => self.u8(0),
            Some(value) => field(self.u8(1), value),
        }
    }

    pub(crate) fn text<const MAX: usize>(self, text: &Text<MAX>) -> Self {
        const {
            assert!(
                MAX <= u16::MAX as usize,
                "the length of a text has two bytes"
            );
        };
        self.u16(text.len() as u16).raw(text.as_bytes())
    }

    pub(crate) fn ip(self, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => self.u8(4).raw(&ip.octets()),
            IpAddr::V6(ip) => self.u8(6).raw(&ip.octets()),
        }
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let body = (self.bytes.len() - LENGTH) as u32;
        self.bytes[..LENGTH].copy_from_slice(&body.to_be_bytes());
        self.bytes
    }
}
