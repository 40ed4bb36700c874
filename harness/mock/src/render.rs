//! Events as the text that OpenAI-compatible servers send.

use std::fmt::Write;

use pb_contract::TokenId;
use serde_json::{Value, json};

use crate::ask::{Api, Ask};
use crate::event::{Event, UsageCounts, UsageNote};
use crate::options::{Style, UsageStyle};
use crate::tokens::Tokenizer;

/// Unix time in every response; no clock of the wall is read.
const CREATED: u64 = 1_700_000_000;

/// Writes the events of one request.
pub(crate) struct Renderer<'a> {
    ask: &'a Ask,
    style: &'a Style,
    /// Everything of an event's object before `choices`.
    prefix: String,
    prompt_tokens: u32,
    cached_tokens: u32,
    /// When the first token is due.
    pub(crate) first_token_ns: u64,
    /// Output tokens so far.
    pub(crate) completion: u32,
}

impl<'a> Renderer<'a> {
    /// For the request with this number.
    pub(crate) fn new(ask: &'a Ask, style: &'a Style, number: u64, cached_tokens: usize) -> Self {
        let (id, object) = match ask.api {
            Api::Completions => ("cmpl", "text_completion"),
            Api::Chat => ("chatcmpl", "chat.completion.chunk"),
        };
        let prefix = format!(
            r#"{{"id":"{id}-mock-{number}","object":"{object}","created":{CREATED},"model":{}"#,
            quoted(&ask.model)
        );
        Renderer {
            ask,
            style,
            prefix,
            prompt_tokens: ask.prompt.len() as u32,
            cached_tokens: cached_tokens as u32,
            first_token_ns: 0,
            completion: 0,
        }
    }

    /// The text of an event that is nothing but text, so that its bytes depend on that alone.
    pub(crate) fn plain_text<'e>(&self, event: &'e Event) -> Option<&'e str> {
        let more = event.role.is_some()
            || event.reasoning.is_some()
            || event.tool_arguments.is_some()
            || event.finish.is_some()
            || event.usage != UsageNote::None
            || event.done
            || event.error.is_some()
            || event.comment.is_some()
            || event.raw.is_some()
            || event.timings
            || event.choice > 0;
        // The id in a named event counts tokens.
        let repeats = !more && !self.style.named_events;
        event
            .content
            .as_deref()
            .filter(|text| repeats && self.names_its_tokens(text, event.tokens))
    }

    /// Whether the ids of a text of so many tokens, when they are wanted, are those of the text.
    fn names_its_tokens(&self, text: &str, tokens: u32) -> bool {
        let ids = self
            .ask
            .token_ids
            .map(|tokenizer| tokenizer.encode(text).len());
        ids.is_none_or(|ids| ids == tokens as usize)
    }

    /// The bytes of an event.
    pub(crate) fn event(&mut self, event: &Event) -> Vec<u8> {
        self.completion += event.tokens;
        if event.tokens > 0 && self.first_token_ns == 0 {
            self.first_token_ns = event.at_ns;
        }
        if let Some(raw) = &event.raw {
            return raw.clone();
        }
        let mut out = String::new();
        if let Some(comment) = &event.comment {
            self.line(&mut out, ":", comment);
        }
        if let Some(error) = &event.error {
            let field = if event.error_field { "error" } else { "data" };
            let body = match event.error_field {
                true => error.to_string(),
                false => json!({ "error": error }).to_string(),
            };
            self.block(&mut out, field, &body);
        }
        if event.has_choice() || self.has_usage(event) {
            let object = self.object(event);
            self.block(&mut out, "data", &object);
        }
        if event.done {
            self.block(&mut out, "data", "[DONE]");
        }
        if event.comment.is_some() && out.lines().count() == 1 {
            // Nothing follows that would end the block.
            out.push_str(self.line_end());
        }
        out.into_bytes()
    }

    fn line_end(&self) -> &'static str {
        if self.style.crlf { "\r\n" } else { "\n" }
    }

    fn line(&self, out: &mut String, field: &str, value: &str) {
        let colon = if field == ":" { "" } else { ":" };
        let space = if self.style.no_space { "" } else { " " };
        // Writing to a string cannot fail.
        let _ = write!(out, "{field}{colon}{space}{value}{}", self.line_end());
    }

    /// One server-sent event.
    fn block(&self, out: &mut String, field: &str, value: &str) {
        if self.style.comments {
            self.line(out, ":", "keep-alive");
        }
        if self.style.named_events {
            self.line(out, "event", "message");
            self.line(out, "id", &self.completion.to_string());
            self.line(out, "retry", "1000");
        }
        self.line(out, field, value);
        out.push_str(self.line_end());
    }

    fn has_usage(&self, event: &Event) -> bool {
        event.usage != UsageNote::None && self.style.usage != UsageStyle::Missing
    }

    fn object(&self, event: &Event) -> String {
        let mut out = self.prefix.clone();
        out.push_str(r#","choices":["#);
        if event.has_choice() {
            self.choice(&mut out, event);
        }
        out.push(']');
        if self.has_usage(event) {
            let _ = write!(out, r#","usage":{}"#, self.usage(event.usage));
        }
        if event.timings {
            let _ = write!(out, r#","timings":{}"#, self.timings(event.at_ns));
        }
        out.push('}');
        out
    }

    /// What llama.cpp tells at the end. The time of the prompt is not told apart here, so it is
    /// the time to the first token.
    fn timings(&self, at_ns: u64) -> Value {
        let ms = |ns: u64| ns as f64 / 1e6;
        let predicted = self.completion / self.ask.choices.max(1);
        json!({
            "cache_n": self.cached_tokens,
            "prompt_n": self.prompt_tokens - self.cached_tokens,
            "prompt_ms": ms(self.first_token_ns),
            "predicted_n": predicted,
            "predicted_ms": ms(at_ns.saturating_sub(self.first_token_ns)),
        })
    }

    /// Ids of the tokens of an event: those of its text, where it has as many.
    fn token_ids(&self, event: &Event, tokenizer: Tokenizer) -> Vec<TokenId> {
        let parts = [&event.reasoning, &event.content, &event.tool_arguments];
        let text: String = parts.into_iter().flatten().map(String::as_str).collect();
        let ids = tokenizer.encode(&text);
        match ids.len() == event.tokens as usize {
            true => ids,
            false => (0..event.tokens).collect(),
        }
    }

    fn choice(&self, out: &mut String, event: &Event) {
        let finish = event.finish.as_deref().map_or("null".into(), quoted);
        let mut end = format!(r#""logprobs":null,"finish_reason":{finish}"#);
        if let Some(tokenizer) = self.ask.token_ids {
            let ids = match event.tokens {
                0 => Value::Null,
                _ => json!(self.token_ids(event, tokenizer)),
            };
            let _ = write!(end, r#","token_ids":{ids}"#);
        }
        let index = event.choice;
        if self.ask.api == Api::Completions {
            let text = quoted(event.content.as_deref().unwrap_or(""));
            let _ = write!(out, r#"{{"index":{index},"text":{text},{end}}}"#);
            return;
        }
        let mut delta = String::new();
        let parts = [
            ("role", &event.role),
            ("reasoning_content", &event.reasoning),
            ("content", &event.content),
        ];
        for (name, text) in parts {
            if let Some(text) = text {
                let comma = if delta.is_empty() { "" } else { "," };
                let _ = write!(delta, r#"{comma}"{name}":{}"#, quoted(text));
            }
        }
        if event.role.is_some() && event.content.is_none() {
            delta.push_str(r#","content":"""#);
        }
        if let Some(arguments) = &event.tool_arguments {
            let comma = if delta.is_empty() { "" } else { "," };
            let _ = write!(
                delta,
                r#"{comma}"tool_calls":[{{"index":0,"function":{{"arguments":{}}}}}]"#,
                quoted(arguments)
            );
        }
        let _ = write!(out, r#"{{"index":{index},"delta":{{{delta}}},{end}}}"#);
    }

    fn usage(&self, note: UsageNote) -> Value {
        let counts = match note {
            UsageNote::Stated(counts) => counts,
            UsageNote::None | UsageNote::Served => UsageCounts {
                prompt: self.prompt_tokens,
                completion: self.completion,
                cached: match self.style.usage {
                    UsageStyle::Full => Some(self.cached_tokens),
                    UsageStyle::OmitZeroCached => Some(self.cached_tokens).filter(|&n| n > 0),
                    UsageStyle::NoCached | UsageStyle::Missing => None,
                },
            },
        };
        let mut usage = json!({
            "prompt_tokens": counts.prompt,
            "total_tokens": counts.prompt.saturating_add(counts.completion),
            "completion_tokens": counts.completion,
        });
        if let Some(cached) = counts.cached {
            usage["prompt_tokens_details"] = json!({ "cached_tokens": cached });
        }
        usage
    }

    /// The whole answer to a request that is not streamed.
    pub(crate) fn whole(&mut self, events: &[Event]) -> Vec<u8> {
        let mut usage = UsageNote::None;
        for event in events {
            self.completion += event.tokens;
            if event.tokens > 0 && self.first_token_ns == 0 {
                self.first_token_ns = event.at_ns;
            }
            if let UsageNote::Stated(_) = event.usage {
                usage = event.usage;
            }
        }
        let choices = (0..self.ask.choices).map(|index| self.whole_choice(index, events));
        let choices = Value::Array(choices.collect());
        let prefix = self
            .prefix
            .replace("chat.completion.chunk", "chat.completion");
        let mut out = format!(r#"{prefix},"choices":{choices}"#);
        if self.style.usage != UsageStyle::Missing {
            let _ = write!(out, r#","usage":{}"#, self.usage(usage));
        }
        if let Some(last) = events.iter().find(|event| event.timings) {
            let _ = write!(out, r#","timings":{}"#, self.timings(last.at_ns));
        }
        out.push('}');
        out.into_bytes()
    }

    /// One choice of a whole answer.
    fn whole_choice(&self, index: u32, events: &[Event]) -> Value {
        let mut finish = None;
        let (mut content, mut reasoning) = (String::new(), String::new());
        let mut ids = Vec::new();
        for event in events.iter().filter(|event| event.choice == index) {
            content.push_str(event.content.as_deref().unwrap_or(""));
            reasoning.push_str(event.reasoning.as_deref().unwrap_or(""));
            finish = event.finish.clone().or(finish);
            if let Some(tokenizer) = self.ask.token_ids {
                ids.extend(self.token_ids(event, tokenizer));
            }
        }
        let mut choice = match self.ask.api {
            Api::Completions => json!({ "index": index, "text": content, "logprobs": null }),
            Api::Chat => {
                let mut message = json!({ "role": "assistant", "content": content });
                if !reasoning.is_empty() {
                    message["reasoning_content"] = json!(reasoning);
                }
                json!({ "index": index, "message": message })
            }
        };
        choice["finish_reason"] = json!(finish);
        if self.ask.token_ids.is_some() {
            choice["token_ids"] = json!(ids);
        }
        choice
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let plain = |b: u8| (b' '..=b'~').contains(&b) && b != b'"' && b != b'\\';
    match text.bytes().all(plain) {
        true => format!("\"{text}\""),
        false => Value::from(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::MockOptions;

    fn ask(api: Api) -> Ask {
        let body = r#"{"prompt":"abc","messages":[{"role":"u","content":"x"}]}"#;
        Ask::parse(api, body.as_bytes(), &MockOptions::default()).unwrap()
    }

    fn text(api: Api, style: &Style, event: &Event) -> String {
        let ask = ask(api);
        String::from_utf8(Renderer::new(&ask, style, 7, 0).event(event)).unwrap()
    }

    fn content(text: &str) -> Event {
        Event {
            content: Some(text.into()),
            tokens: 1,
            ..Event::default()
        }
    }

    #[test]
    fn events_have_the_layout_of_vllm() {
        let style = Style::default();
        assert_eq!(
            text(Api::Completions, &style, &content("a\"b")),
            "data: {\"id\":\"cmpl-mock-7\",\"object\":\"text_completion\",\"created\":1700000000,\
             \"model\":\"mock\",\"choices\":[{\"index\":0,\"text\":\"a\\\"b\",\"logprobs\":null,\
             \"finish_reason\":null}]}\n\n"
        );
        let role = Event {
            role: Some("assistant".into()),
            ..Event::default()
        };
        let sent = text(Api::Chat, &style, &role);
        assert!(
            sent.contains(r#""delta":{"role":"assistant","content":""}"#),
            "{sent}"
        );
        let done = Event {
            done: true,
            usage: UsageNote::Served,
            ..Event::default()
        };
        let sent = text(Api::Completions, &style, &done);
        let usage =
            r#""choices":[],"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0,"#;
        assert!(
            sent.contains(usage) && sent.ends_with("\n\ndata: [DONE]\n\n"),
            "{sent}"
        );
    }

    #[test]
    fn ids_are_as_many_as_tokens_and_asked_for() {
        let body = r#"{"prompt":"abc","return_token_ids":true}"#;
        let ask = Ask::parse(Api::Completions, body.as_bytes(), &MockOptions::default()).unwrap();
        let style = Style::default();
        let sent = |text: &str, tokens: u32| {
            let event = Event {
                tokens,
                ..content(text)
            };
            let bytes = Renderer::new(&ask, &style, 7, 0).event(&event);
            String::from_utf8(bytes).unwrap()
        };
        // The bytes of BCD, and as many as were said where the text has not as many.
        assert!(sent("BCD", 3).contains(r#""token_ids":[66,67,68]}"#));
        assert!(sent("BCD", 2).contains(r#""token_ids":[0,1]}"#));
        assert!(sent("", 0).contains(r#""token_ids":null}"#));
        assert!(!text(Api::Completions, &style, &content("a")).contains("token_ids"));
    }

    #[test]
    fn every_style_reads_the_same_and_looks_different() {
        let style = Style {
            crlf: true,
            no_space: true,
            named_events: true,
            comments: true,
            ..Style::default()
        };
        let sent = text(Api::Completions, &style, &content("x"));
        let head = ":keep-alive\r\nevent:message\r\nid:1\r\nretry:1000\r\ndata:{\"id\"";
        assert!(
            sent.starts_with(head) && sent.ends_with("}\r\n\r\n"),
            "{sent}"
        );
    }

    #[test]
    fn row_64_a_zero_is_stated_or_left_out_as_asked() {
        let usage = Event {
            usage: UsageNote::Served,
            ..Event::default()
        };
        for (kind, cached, usage_there) in [
            (UsageStyle::Full, true, true),
            (UsageStyle::OmitZeroCached, false, true),
            (UsageStyle::NoCached, false, true),
            (UsageStyle::Missing, false, false),
        ] {
            let style = Style {
                usage: kind,
                ..Style::default()
            };
            let sent = text(Api::Completions, &style, &usage);
            assert_eq!(sent.contains("cached_tokens\":0"), cached, "{sent}");
            assert_eq!(sent.contains("prompt_tokens\":3"), usage_there, "{sent}");
        }
    }

    #[test]
    fn a_whole_answer_is_one_document() {
        let ask = ask(Api::Chat);
        let style = Style::default();
        let mut finish = content("b");
        finish.finish = Some("length".into());
        let body = Renderer::new(&ask, &style, 1, 0).whole(&[content("a"), finish]);
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["choices"][0]["message"]["content"], "ab");
        assert_eq!(body["object"], "chat.completion");
        assert_eq!(body["usage"]["completion_tokens"], 2);
    }
}
