//! Errors that the router itself tells, in the shape of its workers'.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pb_contract::wire::{ErrorBody, ErrorDetail};

use crate::stats::Refusal;

/// A request that gets no answer, and why.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    kind: &'static str,
    pub(crate) message: String,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        ApiError {
            status,
            kind,
            message: message.into(),
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, "BadRequestError", message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        ApiError::new(status, "ServiceUnavailableError", message)
    }

    /// A worker that failed, and could not be replaced.
    pub(crate) fn bad_gateway(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_GATEWAY, "BadGatewayError", message)
    }

    /// As it stands in a stream.
    pub(crate) fn event(&self) -> Vec<u8> {
        // OK because the type has string keys only and a Vec takes every write.
        serde_json::to_vec(&self.body()).unwrap()
    }

    fn body(&self) -> ErrorBody {
        ErrorBody {
            error: ErrorDetail {
                message: self.message.clone(),
                kind: self.kind.to_owned(),
                param: None,
                code: self.status.as_u16(),
            },
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(why: Refusal) -> Self {
        let too_many = |message: String| {
            ApiError::new(
                StatusCode::TOO_MANY_REQUESTS,
                "TooManyRequestsError",
                message,
            )
        };
        match why {
            Refusal::QueueFull => too_many("As many requests wait as may; try later.".to_owned()),
            Refusal::Waited => {
                ApiError::unavailable("No worker had room in time; try again later.")
            }
            Refusal::Early {
                predicted_ns,
                slo_ns,
            } => too_many(format!(
                "The first token is predicted in {} ms, and {} ms are allowed; try later.",
                predicted_ns / 1_000_000,
                slo_ns / 1_000_000
            )),
            Refusal::NoWorker => ApiError::unavailable("No worker answers that could do this."),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
