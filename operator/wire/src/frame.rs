//! From a stream of bytes to frames.

use crate::codec::{FrameError, LENGTH};

/// Longest body of a frame, in bytes, the kind included. The longest frame of this version is a
/// `Release` with all of its text, well below.
pub const MAX_BODY: usize = 40 * 1024;

/// What goes in one direction.
pub trait Message: Sized {
    /// Reads the body of one frame: the kind and the fields.
    fn decode(body: &[u8]) -> Result<Self, FrameError>;

    /// The whole frame, its length in front.
    fn encode(&self) -> Vec<u8>;
}

/// Puts frames together from the pieces in which a stream delivers them.
///
/// Give it what one read returned, then take frames until there is none. Memory follows what was
/// received, never the length that a frame claims to have. After an error it returns that error for
/// ever.
#[derive(Debug, Default)]
pub struct FrameReader {
    received: Vec<u8>,
    failed: Option<FrameError>,
}

impl FrameReader {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.received.extend_from_slice(bytes);
        }
    }

    /// The next frame; none while its end has not been received.
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
