//! A reader that ends with the last whole line.
//!
//! A table that is still being written, or whose writer was killed, may end in half a line. What
//! stands behind the last line feed is held back, so that no parser ever sees it.

use std::io::Read;

/// Bytes read at once.
const CHUNK: usize = 1 << 16;

/// Passes on whole lines only.
#[derive(Debug)]
pub(crate) struct WholeLines<R> {
    inner: R,
    buffer: Vec<u8>,
    /// What has been passed on of `buffer`.
    given: usize,
    /// Whole lines in `buffer` end here.
    whole: usize,
    ended: bool,
}

impl<R: Read> WholeLines<R> {
    /// The whole lines of `inner`.
    pub(crate) fn new(inner: R) -> Self {
        WholeLines {
            inner,
            buffer: Vec::new(),
            given: 0,
            whole: 0,
            ended: false,
        }
    }

    /// Whether half a line was held back; known at the end.
    pub(crate) fn partial(&self) -> bool {
        self.ended && self.whole < self.buffer.len()
    }

    /// What the bytes come from.
    pub(crate) fn inner(&self) -> &R {
        &self.inner
    }

    /// Reads on until there is a whole line more, or the end.
    fn fill(&mut self) -> std::io::Result<()> {
        self.buffer.drain(..self.given);
        self.whole -= self.given;
        self.given = 0;
        while self.whole == 0 && !self.ended {
            let held = self.buffer.len();
            self.buffer.resize(held + CHUNK, 0);
            let read = self.inner.read(&mut self.buffer[held..]);
            self.buffer.truncate(held + *read.as_ref().unwrap_or(&0));
            self.ended = read? == 0;
            let last = self.buffer[held..].iter().rposition(|&byte| byte == b'\n');
            self.whole = last.map_or(0, |at| held + at + 1);
        }
        Ok(())
    }
}

impl<R: Read> Read for WholeLines<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.given == self.whole {
            self.fill()?;
        }
        let ready = &self.buffer[self.given..self.whole];
        let n = ready.len().min(out.len());
        out[..n].copy_from_slice(&ready[..n]);
        self.given += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source that gives a few bytes at a time.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let n = self.1.min(self.0.len()).min(out.len());
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn half_a_line_is_held_back_wherever_the_reads_end() {
        for (text, whole) in [
            ("a\nbc\nd", "a\nbc\n"),
            ("a\nbc\n", "a\nbc\n"),
            ("abc", ""),
            ("", ""),
            ("\n\n", "\n\n"),
        ] {
            for step in 1..=8 {
                let mut lines = WholeLines::new(Slow(text.as_bytes(), step));
                let mut read = String::new();
                lines.read_to_string(&mut read).unwrap();
                assert_eq!(
                    (read.as_str(), lines.partial()),
                    (whole, whole != text),
                    "{text:?}"
                );
            }
        }
        let long = format!("{}\n{}", "x".repeat(3 * CHUNK), "y".repeat(CHUNK));
        let mut lines = WholeLines::new(long.as_bytes());
        let mut read = String::new();
        lines.read_to_string(&mut read).unwrap();
        assert_eq!((read.len(), lines.partial()), (3 * CHUNK + 1, true));
    }
}
