//! Splits a byte stream into frames.

use crate::codec::{FrameError, LENGTH};

/// Longest body of a frame in bytes, including the kind. The longest frame of version 1 is a
/// `Release` with the longest `peers`, below this limit.
pub const MAX_BODY: usize = 40 * 1024;

/// The messages of one direction.
pub trait Message: Sized {
    /// Decodes the body of one frame: the kind and the fields.
    fn decode(body: &[u8]) -> Result<Self, FrameError>;

    /// Encodes the whole frame, including the length prefix.
    fn encode(&self) -> Vec<u8>;
}

/// Assembles frames from the chunks of a stream.
///
/// Push the bytes of each read, then take frames until there is none. Memory grows with received
/// bytes, never with a claimed length. After an error, every call returns that error.
#[derive(Debug, Default)]
pub struct FrameReader {
    received: Vec<u8>,
    failed: Option<FrameError>,
}

impl FrameReader {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.received.extend_from_slice(bytes);
        }
    }

    /// The next frame, or `None` if the frame is incomplete.
    pub fn next_frame<M: Message>(&mut self) -> Result<Option<M>, FrameError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let frame = self.take_frame();
        if let Err(error) = frame {
            self.failed = Some(error);
            self.received = Vec::new();
        }
        frame
    }

    fn take_frame<M: Message>(&mut self) -> Result<Option<M>, FrameError> {
        let Some((length, rest)) = self.received.split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length);
        let body = length as usize;
        if body == 0 || body > MAX_BODY {
            return Err(FrameError::Length(length));
        }
        let Some(bytes) = rest.get(..body) else {
            return Ok(None);
        };
        let message = M::decode(bytes)?;
        self.received.drain(..LENGTH + body);
        Ok(Some(message))
    }
}
