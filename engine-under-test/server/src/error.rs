//! Errors on the wire, in vLLM's shape and, where it was recorded, in vLLM's words.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pb_contract::wire::{ErrorBody, ErrorDetail};
use serde_json::Value;

use crate::collector::Failure;

/// The longest excerpt of a value that a message repeats, in characters.
const EXCERPT_CHARS: usize = 80;

/// A request that gets no answer, and why.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        ApiError {
            status,
            kind,
            message: message.into(),
            param: None,
        }
    }

    /// 400 without a field at fault.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, "BadRequestError", message)
    }

    /// 400 for a field.
    pub(crate) fn field(name: &str, message: impl Into<String>) -> Self {
        ApiError {
            param: Some(name.to_owned()),
            ..ApiError::bad_request(message)
        }
    }

    /// 400 for a field's value, which the message repeats.
    pub(crate) fn value(name: &str, sentence: &str, value: &Value) -> Self {
        let got = excerpt(value);
        ApiError::field(
            name,
            format!("{sentence}, got {got}. (parameter={name}, value={got})"),
        )
    }

    /// 401.
    pub(crate) fn unauthorized() -> Self {
        ApiError::new(
            StatusCode::UNAUTHORIZED,
            "AuthenticationError",
            "Unauthorized",
        )
    }

    /// 404 for a model.
    pub(crate) fn no_such_model(asked: &str, served: &str) -> Self {
        let asked: String = asked.chars().take(EXCERPT_CHARS).collect();
        let message = format!("The model `{asked}` does not exist. Valid aliases: {served}.");
        let error = ApiError::new(StatusCode::NOT_FOUND, "NotFoundError", message);
        ApiError {
            param: Some("model".to_owned()),
            ..error
        }
    }

    /// 404 for a path.
    pub(crate) fn no_such_path() -> Self {
        ApiError::new(StatusCode::NOT_FOUND, "NotFoundError", "Not Found")
    }

    /// 404 for times that nobody has taken.
    pub(crate) fn not_timed() -> Self {
        let message = "No step was timed kernel by kernel so far. Every N-th is with `--device \
                       cuda --device-times N`; the CPU's kernels are not timed one by one.";
        ApiError::new(StatusCode::NOT_FOUND, "NotFoundError", message)
    }

    /// 405.
    pub(crate) fn wrong_method() -> Self {
        ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "BadRequestError",
            "Method Not Allowed",
        )
    }

    /// 408.
    pub(crate) fn body_timeout() -> Self {
        let message = "The request body took too long to arrive.";
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "RequestTimeoutError", message)
    }

    /// 413.
    pub(crate) fn too_large(limit_bytes: usize) -> Self {
        let message = format!("The request body is larger than the limit of {limit_bytes} bytes.");
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            message,
        )
    }

    /// 500.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalServerError",
            message,
        )
    }

    /// 503.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailableError",
            message,
        )
    }

    /// 503 at the end.
    pub(crate) fn shutting_down() -> Self {
        ApiError::unavailable("The server is shutting down.")
    }

    /// The body, also used inside a stream whose status has already gone out.
    pub(crate) fn body(&self) -> ErrorBody {
        ErrorBody {
            error: ErrorDetail {
                message: self.message.clone(),
                kind: self.kind.to_owned(),
                param: self.param.clone(),
                code: self.status.as_u16(),
            },
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(message) => ApiError::bad_request(message),
            Failure::Overloaded => {
                ApiError::unavailable("Too many requests are in flight; try again later.")
            }
            Failure::Engine(message) => ApiError::internal(message),
            Failure::Transfer(message) => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                ApiError::new(status, "kv_transfer_failed", message)
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// A value as JSON, shortened.
fn excerpt(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= EXCERPT_CHARS {
        return text;
    }
    let mut short: String = text.chars().take(EXCERPT_CHARS).collect();
    short.push_str("...");
    short
}
