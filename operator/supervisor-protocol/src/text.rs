//! Text of bounded length.

use std::fmt;
use std::ops::Deref;

/// UTF-8 text of at most `MAX` bytes.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Text<const MAX: usize>(String);

impl<const MAX: usize> Text<MAX> {
    /// The text, or `None` if it exceeds `MAX`. For text that programs read.
    pub fn new(text: impl Into<String>) -> Option<Self> {
        let text = text.into();
        (text.len() <= MAX).then_some(Self(text))
    }

    /// Truncates the text to `MAX` bytes at a character boundary. For text that people read.
    pub fn cut(text: impl Into<String>) -> Self {
        let mut text = text.into();
        let mut end = text.len().min(MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        Self(text)
    }
}

impl<const MAX: usize> Deref for Text<MAX> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<const MAX: usize> fmt::Debug for Text<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<const MAX: usize> fmt::Display for Text<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Text;

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(&*Text::<4>::cut("abcdef"), "abcd");
        assert_eq!(
            &*Text::<4>::cut("abcü"),
            "abc",
            "the last character would need a fifth byte"
        );
        assert_eq!(&*Text::<4>::cut("ab"), "ab");
        assert_eq!(
            (Text::<4>::new("abcd").is_some(), Text::<4>::new("abcü")),
            (true, None)
        );
    }
}
