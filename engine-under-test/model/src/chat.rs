//! Chat templates, rendered as transformers renders them.
//!
//! A template is a Jinja program inside the model's files. Rendering it differently from the
//! reference (whitespace control, Python string methods, the shape of `tojson`) changes the
//! prompt without any error, so the environment here copies transformers' settings:
//! `trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, and a `tojson` that does not
//! escape for HTML. `strftime_now` is left undefined on purpose: templates that know it also have
//! a fixed date to fall back on, and a prompt must not depend on the day it is rendered.
//!
//! ```
//! use pb_model::chat::{ChatMessage, ChatTemplate};
//!
//! let source = "{% for m in messages %}[{{ m.role }}] {{ m.content.strip() }}{% endfor %}";
//! let template = ChatTemplate::new(source, "", "")?;
//! assert_eq!(template.apply(&[ChatMessage::new("user", " hi ")], false)?, "[user] hi");
//! # Ok::<(), pb_model::ModelError>(())
//! ```

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::error::{ModelError, Result};

/// The name under which the one template is stored.
const NAME: &str = "chat";
/// Bound on the work of one render, so that a hostile template ends.
const FUEL: u64 = 20_000_000;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Who speaks: "system", "user", "assistant", "tool".
    pub role: String,
    /// What is said.
    pub content: String,
}

impl ChatMessage {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> ChatMessage {
        ChatMessage {
            role: role.into(),
            content: content.into(),
        }
    }
}

/// A compiled chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// Compiles `source`; the two token strings are what the template sees under those names.
    ///
    /// # Errors
    /// [`ModelError::Template`] when it does not parse.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<ChatTemplate> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(template_error)?);
        environment.set_fuel(Some(FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", tojson);
        environment
            .add_template_owned(NAME, source.to_string())
            .map_err(template_error)?;
        Ok(ChatTemplate {
            environment,
            source: source.into(),
            bos_token: bos_token.into(),
            eos_token: eos_token.into(),
        })
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation; `add_generation_prompt` opens the assistant's turn.
    ///
    /// # Errors
    /// [`ModelError::Template`] with the message of the template's own `raise_exception`, or of
    /// the failed operation.
    pub fn apply(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String> {
        let template = self
            .environment
            .get_template(NAME)
            .map_err(template_error)?;
        let rendered = template.render(context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt => add_generation_prompt,
            bos_token => self.bos_token.as_str(),
            eos_token => self.eos_token.as_str(),
            tools => (),
            documents => (),
        });
        rendered.map_err(template_error)
    }
}

/// minijinja's error with its causes on one line.
fn template_error(error: Error) -> ModelError {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    ModelError::Template(text)
}

/// The function that templates call to refuse a conversation.
fn raise_exception(message: String) -> std::result::Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=indent)`.
fn tojson(value: &Value, options: Kwargs) -> std::result::Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut out, PythonJson)),
        Some(n) => {
            let spaces = " ".repeat(n.min(16));
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter))
        }
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    let text = String::from_utf8(out);
    text.map(Value::from)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// The separators of Python's `json.dumps`: a space after each comma and colon.
struct PythonJson;

impl Formatter for PythonJson {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[ChatMessage]) -> Result<String> {
        ChatTemplate::new(source, "<s>", "</s>")?.apply(messages, true)
    }

    #[test]
    fn block_lines_leave_no_whitespace() {
        // By Jinja's definition of trim_blocks and lstrip_blocks the two tag lines vanish.
        let source = "{{ bos_token }}\n  {% if add_generation_prompt %}\n  go\n  {% endif %}\nend";
        assert_eq!(render(source, &[]).unwrap(), "<s>\n  go\nend");
    }

    #[test]
    fn python_idioms_of_published_templates() {
        let source = "{%- set ns = namespace(n=0) -%}\
            {%- for m in messages[1:] -%}\
            {%- if m['role'] == 'skip' -%}{%- continue -%}{%- endif -%}\
            {%- set ns.n = ns.n + 1 -%}{{ m['content'].strip().split('|')[-1] | trim }},\
            {%- endfor -%}\
            {{ ns.n }}{{ messages[0].get('role') }}{% if tools is not none %}T{% endif %}\
            {% if strftime_now is defined %}S{% endif %}";
        let messages = [
            ChatMessage::new("system", "x"),
            ChatMessage::new("skip", "y"),
            ChatMessage::new("user", " a|b "),
        ];
        assert_eq!(render(source, &messages).unwrap(), "b,1system");
    }

    #[test]
    fn tojson_is_pythons() {
        // json.dumps([{"role": "user", "content": "<é>"}], ensure_ascii=False) in Python 3.
        let messages = [ChatMessage::new("user", "<é>")];
        let expected = r#"[{"role": "user", "content": "<é>"}]"#;
        assert_eq!(
            render("{{ messages | tojson }}", &messages).unwrap(),
            expected
        );
    }

    #[test]
    fn refusals_and_runaways_are_errors() {
        let refused = render("{{ raise_exception('no system role') }}", &[]).unwrap_err();
        assert!(refused.to_string().contains("no system role"), "{refused}");
        assert!(ChatTemplate::new("{% if %}", "", "").is_err());
        let runaway = "{% for a in range(99999) %}{% for b in range(99999) %}{{ a * b }}\
            {% endfor %}{% endfor %}";
        assert!(render(runaway, &[]).is_err());
    }
}
