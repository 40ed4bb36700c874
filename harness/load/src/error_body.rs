//! What a server says when it refuses.

use serde_json::Value;

/// Longest message that is kept, in characters.
const MAX_CHARS: usize = 500;

/// The message of an error body, whatever its shape: `{"error": {"message": ..}}`,
/// `{"error": ".."}`, `{"message": ..}`, `{"detail": ..}`, else the text itself, cut to 500
/// characters.
pub fn error_text(body: &str) -> String {
    let value: Value = serde_json::from_str(body).unwrap_or(Value::Null);
    let error = value.get("error").unwrap_or(&value);
    let message = error.get("message").unwrap_or(error).as_str();
    let detail = value.get("detail").and_then(Value::as_str);
    let text = message.or(detail).unwrap_or(body);
    text.chars().take(MAX_CHARS).collect()
}

/// Whether a body is an object with an error in it.
pub fn has_error(body: &str) -> bool {
    let value: Value = serde_json::from_str(body).unwrap_or(Value::Null);
    value.get("error").is_some_and(|error| !error.is_null())
}

/// The code of an error body (`error.code`, else `error.type`), as text: servers use numbers and
/// names.
pub fn error_code(body: &str) -> Option<String> {
    let value: Value = serde_json::from_str(body).ok()?;
    let error = value.get("error").unwrap_or(&value);
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    error
        .get("code")
        .and_then(text)
        .or_else(|| error.get("type").and_then(text))
}

/// The message of a request that was answered with an error status: the status, the code of the
/// body when it says more than the status, the body's message, and when the server would take
/// the request again.
pub fn status_message(status: &str, body: &str, retry_after: Option<&str>) -> String {
    let code = error_code(body).filter(|code| !status.starts_with(code.as_str()));
    let code = code.map_or(String::new(), |code| format!(" ({code})"));
    let retry = retry_after.map_or(String::new(), |after| format!("; Retry-After: {after}"));
    format!("HTTP {status}{code}: {}{retry}", error_text(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_of_an_error_gives_its_message() {
        for (body, message) in [
            (r#"{"error":{"message":"a","code":400}}"#, "a"),
            (r#"{"error":"b"}"#, "b"),
            (r#"{"message":"c"}"#, "c"),
            (r#"{"detail":"d"}"#, "d"),
            ("plain", "plain"),
            ("", ""),
        ] {
            assert_eq!(error_text(body), message, "{body}");
        }
        assert_eq!(error_text(&"é".repeat(600)).chars().count(), 500);
    }

    #[test]
    fn a_status_message_has_the_code_that_adds_something() {
        let named = r#"{"error":{"message":"a","code":"context_length_exceeded"}}"#;
        assert_eq!(
            status_message("400 Bad Request", named, None),
            "HTTP 400 Bad Request (context_length_exceeded): a"
        );
        let same = r#"{"error":{"message":"a","type":"T","code":429}}"#;
        assert_eq!(
            status_message("429 Too Many Requests", same, Some("3")),
            "HTTP 429 Too Many Requests: a; Retry-After: 3"
        );
        let typed = r#"{"error":{"message":"a","type":"T","code":null}}"#;
        assert_eq!(status_message("500 X", typed, None), "HTTP 500 X (T): a");
        assert_eq!(status_message("503 X", "busy", None), "HTTP 503 X: busy");
    }
}
