//! Lines of a stream.

use bytes::{Buf as _, Bytes, BytesMut};

/// Cuts a stream of bytes into lines without looking at a byte twice. A line that came in one piece is not copied.
#[derive(Default)]
pub(super) struct Lines {
    /// The beginning of a line whose end has not come.
    begun: BytesMut,
    /// A line that has just been completed.
    completed: Option<Bytes>,
    /// What comes after it.
    rest: Bytes,
}

impl Lines {
    /// Takes what came next. Everything that was there before has been asked for.
    pub(super) fn feed(&mut self, mut data: Bytes) {
        if self.begun.is_empty() {
            self.rest = data;
        } else if let Some(end) = memchr::memchr(b'\n', &data) {
            self.begun.extend_from_slice(&data.split_to(end));
            data.advance(1);
            self.completed = Some(self.begun.split().freeze());
            self.rest = data;
        } else {
            self.begun.extend_from_slice(&data);
        }
    }

    pub(super) fn next(&mut self) -> Option<Bytes> {
        if let Some(line) = self.completed.take() {
            return Some(line);
        }
        let Some(end) = memchr::memchr(b'\n', &self.rest) else {
            self.begun.extend_from_slice(&std::mem::take(&mut self.rest));
            return None;
        };
        let line = self.rest.split_to(end);
        self.rest.advance(1);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_wherever_the_frames_end() {
        let mut lines = Lines::default();
        let mut got = Vec::new();
        for frame in ["{\"a\"", ":1}\n{", "}\n\n{\"b", "\":2}\n"] {
            lines.feed(Bytes::from(frame));
            while let Some(line) = lines.next() {
                got.push(String::from_utf8(line.to_vec()).unwrap());
            }
        }
        assert_eq!(got, ["{\"a\":1}", "{}", "", "{\"b\":2}"]);
    }
}
