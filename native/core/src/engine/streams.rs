//! Calls on streams: what each of them asks for, whatever the protocol that carries it.

/// What a call does on its stream, which is opened if it is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Nothing more than to have it open.
    Open,
    /// Sends a message, and ends when it is written.
    Send,
    /// Waits for messages, those included that came before the call.
    Receive,
    /// Sends a message and waits for those that come after it.
    Exchange,
    /// Sends a ping and waits for the pong.
    Ping,
    Close,
}

/// Where a message of a protocol without messages ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Until {
    /// Whatever arrives together.
    Any,
    Bytes(usize),
    /// After these bytes, which are part of it.
    Delimiter(Box<[u8]>),
    /// An empty line, which is not part of it: server-sent events.
    EmptyLine,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamCall {
    pub verb: Verb,
    /// The message is text.
    pub is_text: bool,
    /// Messages to wait for.
    pub count: usize,
    /// When its time is up, the call ends well, with what came until then.
    pub ends_in_time: bool,
    pub until: Until,
    /// What a WebSocket is opened with: subprotocols and compressed messages.
    pub subprotocols: Option<String>,
    pub deflate: bool,
    pub close_code: u16,
    pub close_reason: String,
}

impl Default for StreamCall {
    fn default() -> Self {
        Self {
            verb: Verb::Open,
            is_text: false,
            count: 1,
            ends_in_time: false,
            until: Until::Any,
            subprotocols: None,
            deflate: false,
            close_code: 1000,
            close_reason: String::new(),
        }
    }
}

impl StreamCall {
    /// Whether the call waits for messages.
    #[must_use]
    pub fn awaits_messages(&self) -> bool {
        matches!(self.verb, Verb::Receive | Verb::Exchange)
    }

    #[must_use]
    pub fn sends_message(&self) -> bool {
        matches!(self.verb, Verb::Send | Verb::Exchange)
    }
}

/// Cuts bytes into messages, whatever pieces they arrive in.
#[derive(Debug, Default)]
pub struct Splitter {
    /// The start of a message whose end has not come.
    partial: Vec<u8>,
    /// How much of it was searched for its end.
    searched: usize,
    /// The last byte was a carriage return: a line feed that follows belongs to it.
    after_return: bool,
}

impl Splitter {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.partial.len()
    }

    pub fn push(&mut self, input: &[u8]) {
        self.partial.extend_from_slice(input);
    }

    /// The next message that is whole.
    pub fn next(&mut self, until: &Until) -> Option<Vec<u8>> {
        match until {
            Until::Any => {
                self.searched = 0;
                (!self.partial.is_empty()).then(|| std::mem::take(&mut self.partial))
            }
            Until::Bytes(count) => self.take(*count, 0),
            Until::Delimiter(delimiter) => {
                let from = self.searched.saturating_sub(delimiter.len().saturating_sub(1));
                let rest = self.partial.get(from..).unwrap_or_default();
                match memchr::memmem::find(rest, delimiter) {
                    Some(at) => self.take(from + at + delimiter.len(), 0),
                    None => {
                        self.searched = self.partial.len();
                        None
                    }
                }
            }
            Until::EmptyLine => self.next_block(),
        }
    }

    /// Takes so many bytes as a message, and drops those after it.
    fn take(&mut self, count: usize, dropped: usize) -> Option<Vec<u8>> {
        if self.partial.len() < count + dropped {
            return None;
        }
        self.searched = 0;
        let rest = self.partial.split_off(count);
        let mut message = std::mem::replace(&mut self.partial, rest);
        self.partial.drain(..dropped);
        message.shrink_to_fit();
        Some(message)
    }

    /// Lines up to an empty one; lines end with CR, LF or both (HTML §9.2.6). Empty lines before the
    /// first are skipped.
    fn next_block(&mut self) -> Option<Vec<u8>> {
        if self.after_return && self.partial.first() == Some(&b'\n') {
            self.partial.remove(0);
            self.after_return = false;
        }
        let mut at = self.searched;
        // Where the line begins that is looked at.
        let mut line = self.partial.get(..at).map_or(0, |seen| {
            seen.iter().rposition(|&byte| byte == b'\n' || byte == b'\r').map_or(0, |end| end + 1)
        });
        while let Some(&byte) = self.partial.get(at) {
            let ends = byte == b'\n' || byte == b'\r';
            if !ends {
                at += 1;
                continue;
            }
            let is_pair = byte == b'\r' && self.partial.get(at + 1) == Some(&b'\n');
            let length = if is_pair { 2 } else { 1 };
            if at > line {
                if byte == b'\r' && self.partial.len() == at + 1 {
                    break; // the line feed that belongs to it may be the next byte
                }
                at += length;
                line = at;
                continue;
            }
            self.after_return = byte == b'\r' && self.partial.len() == at + 1;
            if at == 0 {
                self.partial.drain(..length);
                continue;
            }
            return self.take(at, length);
        }
        self.searched = at.min(self.partial.len());
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(until: &Until, pieces: &[&str]) -> Vec<String> {
        let (mut splitter, mut found) = (Splitter::default(), Vec::new());
        for piece in pieces {
            splitter.push(piece.as_bytes());
            while let Some(message) = splitter.next(until) {
                found.push(String::from_utf8_lossy(&message).into_owned());
            }
        }
        found
    }

    /// Every way to cut a text in two, and all its bytes apart.
    fn cuts(text: &str) -> Vec<Vec<&str>> {
        let mut all: Vec<Vec<&str>> = (0..=text.len())
            .filter_map(|at| text.split_at_checked(at))
            .map(|(a, b)| vec![a, b])
            .collect();
        all.push(text.split("").filter(|piece| !piece.is_empty()).collect());
        all
    }

    #[test]
    fn messages_end_at_lengths_and_delimiters_however_they_are_cut() {
        for pieces in cuts("ab--cd---e--f") {
            let delimiter = Until::Delimiter(b"--".as_slice().into());
            assert_eq!(split(&delimiter, &pieces), ["ab--", "cd--", "-e--"], "{pieces:?}");
            assert_eq!(split(&Until::Bytes(5), &pieces), ["ab--c", "d---e"], "{pieces:?}");
        }
    }

    #[test]
    fn events_end_at_empty_lines_of_every_kind() {
        for text in ["a\nb\n\nc\n\nd", "a\nb\n\n\n\nc\n\nd", "\n\na\nb\n\nc\n\nd\n"] {
            for pieces in cuts(text) {
                assert_eq!(split(&Until::EmptyLine, &pieces), ["a\nb\n", "c\n"], "{pieces:?}");
            }
        }
        for pieces in cuts("a\r\nb\r\n\r\nc\r\n\r\nd") {
            assert_eq!(split(&Until::EmptyLine, &pieces), ["a\r\nb\r\n", "c\r\n"], "{pieces:?}");
        }
        for pieces in cuts("a\rb\r\rc\r\rd") {
            assert_eq!(split(&Until::EmptyLine, &pieces), ["a\rb\r", "c\r"], "{pieces:?}");
        }
    }
}
