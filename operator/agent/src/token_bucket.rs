//! A token bucket.

use std::time::Duration;

use tokio::time::Instant;

/// Token bucket with the time of the next token.
pub(crate) struct TokenBucket {
    burst: u32,
    each: Duration,
    left: u32,
    counted_to: Instant,
}

impl TokenBucket {
    /// Starts with `burst` tokens, the maximum. One token is added every `each`.
    pub(crate) fn new(burst: u32, each: Duration, now: Instant) -> Self {
        Self {
            burst,
            each,
            left: burst,
            counted_to: now,
        }
    }

    pub(crate) fn take(&mut self, now: Instant) -> bool {
        self.fill(now);
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }

    /// Time of the next token; `now` if a token is available.
    pub(crate) fn next(&mut self, now: Instant) -> Instant {
        self.fill(now);
        if self.left > 0 {
            now
        } else {
            self.counted_to + self.each
        }
    }

    fn fill(&mut self, now: Instant) {
        while self.left < self.burst && self.counted_to + self.each <= now {
            self.left += 1;
            self.counted_to += self.each;
        }
        if self.left == self.burst {
            self.counted_to = now;
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::disallowed_methods,
        reason = "the clock that the test has paused"
    )]

    use super::*;

    const BURST: u32 = 100;
    const EACH: Duration = Duration::from_millis(100);

    #[tokio::test(start_paused = true)]
    async fn they_come_in_bursts_and_then_one_in_each_stretch() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(BURST, EACH, start);
        let mut takes = |at| (0..1000).take_while(|_| bucket.take(at)).count();
        assert_eq!(takes(start), BURST as usize);
        assert_eq!(takes(start + EACH / 2), 0);
        assert_eq!(takes(start + EACH), 1);
        assert_eq!(takes(start + EACH * 4), 3);
        assert_eq!(takes(start + EACH * 1000), BURST as usize);
        assert_eq!(takes(start + EACH * 1000), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_one_is_there_when_it_is_said_to_be() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(2, EACH, start);
        assert_eq!(bucket.next(start), start);
        assert!(bucket.take(start) && bucket.take(start));
        let next = bucket.next(start + EACH / 2);
        assert_eq!(next, start + EACH);
        assert!(bucket.take(next));
        assert_eq!(bucket.next(next), start + EACH * 2);
    }
}
