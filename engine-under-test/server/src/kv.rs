//! Disaggregation on the wire: who computes what of a request.
//!
//! The names are vLLM's. A router asks a prefill worker with `{"do_remote_decode": true}`; the
//! answer has the first token and, in `kv_transfer_params`, all that a decode worker needs to go
//! on. The router sends the same request there with that object.

use pb_contract::TokenId;
use pb_core::disagg::{EarlySource, HandedOff, KvSource, KvTask};
use pb_transfer::service::Remote;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::app::App;
use crate::error::ApiError;

/// Name of the field.
const FIELD: &str = "kv_transfer_params";

/// What a server does of other servers' requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvRole {
    /// Computes prompts for others, and goes on with theirs.
    Both,
    /// Computes prompts for others.
    Prefill,
    /// Goes on with others' prompts.
    Decode,
}

impl KvRole {
    /// One word.
    pub const fn as_str(self) -> &'static str {
        match self {
            KvRole::Both => "both",
            KvRole::Prefill => "prefill",
            KvRole::Decode => "decode",
        }
    }

    /// Whether it hands requests off.
    pub const fn hands_off(self) -> bool {
        matches!(self, KvRole::Both | KvRole::Prefill)
    }

    /// Whether it goes on with requests of others.
    pub const fn takes(self) -> bool {
        matches!(self, KvRole::Both | KvRole::Decode)
    }
}

/// How a server takes part in disaggregation, and what others must know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvFacts {
    /// Its part.
    pub role: KvRole,
    /// Its name; another one after each start.
    pub engine_id: String,
    /// Name of the transport.
    pub transport: &'static str,
    /// Where its KV is claimed; none when it hands nothing off.
    pub remote: Option<Remote>,
    /// Prompts of at least so many tokens are given away while they are computed; none: no prompt
    /// is.
    pub stream_min_tokens: Option<usize>,
}

/// `kv_transfer_params` of a prefill worker's answer, and of the request to a decode worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvTransferParams {
    /// The KV is elsewhere.
    pub do_remote_prefill: bool,
    /// Who has it.
    pub remote_engine_id: String,
    /// Where it is claimed: a host, or the path of a socket.
    pub remote_host: String,
    /// Port there; 0 where there is none.
    pub remote_port: u16,
    /// Under which name it is held.
    pub transfer_id: u64,
    /// Tokens in a block there; the engines agree on it by themselves.
    pub remote_block_size: usize,
    /// Prompt tokens, whose KV it is.
    pub num_tokens: usize,
    /// The token that followed, which has been given out.
    pub first_token: TokenId,
    /// That token has ended the request: nothing is held, and there is nothing to decode.
    pub finished: bool,
}

impl KvFacts {
    /// What the answer to a handed-off request says; with `held` none the first token ended it.
    pub(crate) fn params(
        &self,
        block_size: usize,
        (num_tokens, first_token): (usize, TokenId),
        held: Option<&HandedOff>,
    ) -> KvTransferParams {
        let remote = self.remote.clone().unwrap_or(Remote {
            host: String::new(),
            port: 0,
        });
        KvTransferParams {
            do_remote_prefill: true,
            remote_engine_id: self.engine_id.clone(),
            remote_host: remote.host,
            remote_port: remote.port,
            transfer_id: held.map_or(0, |held| held.ticket),
            remote_block_size: block_size,
            num_tokens,
            first_token,
            finished: held.is_none(),
        }
    }
}

/// Who computes what of a request, as its sender says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum KvRequest {
    /// This server all of it.
    #[default]
    Whole,
    /// This server the prompt; with a ticket of the sender's, its KV may be claimed by that while
    /// it is computed.
    HandOff(Option<u64>),
    /// This server what follows the first token.
    Take(KvTransferParams),
    /// Nothing yet: the KV is fetched for a request that comes later.
    Prefetch(PrefetchParams),
}

/// `kv_transfer_params` of a request that only fetches KV ahead.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct PrefetchParams {
    /// Where the KV will be claimed.
    remote_host: String,
    /// Port there; 0 where there is none.
    remote_port: u16,
    /// Under which name it will be held.
    transfer_id: u64,
}

/// Largest ticket: every JSON reader takes it as it is.
const MAX_TICKET: u64 = (1 << 53) - 1;

impl KvRequest {
    /// Reads the field. Other keys than those that decide are vLLM's and may be null.
    pub(crate) fn parse(field: Option<Value>) -> Result<KvRequest, ApiError> {
        let Some(value) = field else {
            return Ok(KvRequest::Whole);
        };
        let flag = |name: &str| match value.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => {
                let sentence = format!("{FIELD}.{name} must be true or false");
                Err(ApiError::value(FIELD, &sentence, other))
            }
        };
        match (flag("do_remote_decode")?, flag("do_remote_prefill")?) {
            (false, false) => Ok(KvRequest::Whole),
            (true, false) => match value.get("transfer_id") {
                None | Some(Value::Null) => Ok(KvRequest::HandOff(None)),
                Some(id) => match id.as_u64().filter(|id| (1..=MAX_TICKET).contains(id)) {
                    Some(ticket) => Ok(KvRequest::HandOff(Some(ticket))),
                    None => {
                        let sentence =
                            format!("{FIELD}.transfer_id must be a number from 1 to {MAX_TICKET}");
                        Err(ApiError::value(FIELD, &sentence, id))
                    }
                },
            },
            (true, true) => {
                let message = "do_remote_decode and do_remote_prefill must not both be true";
                Err(ApiError::field(FIELD, format!("{FIELD}: {message}")))
            }
            (false, true) if flag("prefetch")? => {
                let params = serde_json::from_value(value)
                    .map_err(|error| ApiError::field(FIELD, format!("{FIELD}: {error}")))?;
                Ok(KvRequest::Prefetch(params))
            }
            (false, true) => {
                let params: KvTransferParams = serde_json::from_value(value)
                    .map_err(|error| ApiError::field(FIELD, format!("{FIELD}: {error}")))?;
                if params.finished {
                    let message = "finished is true: the first token has ended the request, and \
                                   there is nothing to decode";
                    return Err(ApiError::field(FIELD, format!("{FIELD}: {message}")));
                }
                Ok(KvRequest::Take(params))
            }
        }
    }

    /// For the core.
    pub(crate) fn task(&self) -> KvTask {
        match self {
            KvRequest::Whole => KvTask::Whole,
            KvRequest::HandOff(None) => KvTask::HandOff,
            KvRequest::HandOff(Some(ticket)) => KvTask::Stream(*ticket),
            KvRequest::Prefetch(params) => KvTask::Prefetch(EarlySource {
                remote: Remote {
                    host: params.remote_host.clone(),
                    port: params.remote_port,
                },
                ticket: params.transfer_id,
            }),
            KvRequest::Take(params) => KvTask::Take(KvSource {
                remote: Remote {
                    host: params.remote_host.clone(),
                    port: params.remote_port,
                },
                ticket: params.transfer_id,
                tokens: params.num_tokens,
                first_token: params.first_token,
            }),
        }
    }
}

impl App {
    /// Refuses what this server's role does not have, and requests of several choices: a transfer
    /// is the KV of one.
    pub(crate) fn check_kv(&self, kv: &KvRequest, choices: usize) -> Result<(), ApiError> {
        let role = self.options.kv.as_ref().map(|facts| facts.role);
        let refuse = |message: String| Err(ApiError::field(FIELD, format!("{FIELD}: {message}")));
        let (does, what) = match kv {
            KvRequest::Whole => return Ok(()),
            KvRequest::HandOff(_) => (role.is_some_and(KvRole::hands_off), "do_remote_decode"),
            KvRequest::Take(_) | KvRequest::Prefetch(_) => {
                (role.is_some_and(KvRole::takes), "do_remote_prefill")
            }
        };
        if !does {
            let role = role.map_or("none", KvRole::as_str);
            return refuse(format!(
                "this server's role is {role}, which does not do {what}"
            ));
        }
        if choices != 1 {
            return refuse(format!("one prompt and n = 1 only, got {choices} choices"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn params() -> Value {
        json!({
            "do_remote_prefill": true, "remote_engine_id": "p", "remote_host": "127.0.0.1",
            "remote_port": 5, "transfer_id": 9, "remote_block_size": 16, "num_tokens": 33,
            "first_token": 7, "finished": false,
        })
    }

    #[test]
    fn who_computes_what() {
        let parse = |value: Value| KvRequest::parse(Some(value));
        assert_eq!(KvRequest::parse(None).unwrap(), KvRequest::Whole);
        for whole in [
            json!({}),
            json!({"do_remote_decode": false, "remote_host": null}),
        ] {
            assert_eq!(parse(whole).unwrap(), KvRequest::Whole);
        }
        let vllm = json!({"do_remote_decode": true, "do_remote_prefill": false,
            "remote_engine_id": null, "remote_block_ids": null});
        assert_eq!(parse(vllm).unwrap(), KvRequest::HandOff(None));
        let named = json!({"do_remote_decode": true, "transfer_id": MAX_TICKET});
        assert_eq!(parse(named).unwrap(), KvRequest::HandOff(Some(MAX_TICKET)));
        let ahead = json!({"do_remote_prefill": true, "prefetch": true, "remote_host": "h",
            "remote_port": 5, "transfer_id": 9});
        let source = EarlySource {
            remote: Remote {
                host: "h".to_owned(),
                port: 5,
            },
            ticket: 9,
        };
        let ahead = parse(ahead).unwrap().task();
        assert_eq!(ahead, KvTask::Prefetch(source));
        let KvRequest::Take(taken) = parse(params()).unwrap() else {
            panic!("a request that goes on");
        };
        assert_eq!((taken.transfer_id, taken.num_tokens), (9, 33));
        assert_eq!(serde_json::to_value(taken).unwrap(), params());
    }

    #[test]
    fn what_makes_no_sense_names_the_field() {
        let mut finished = params();
        finished["finished"] = json!(true);
        let mut both = params();
        both["do_remote_decode"] = json!(true);
        let mut short = params();
        short.as_object_mut().unwrap().remove("first_token");
        for (bad, word) in [
            (finished, "nothing to decode"),
            (both, "must not both"),
            (short, "first_token"),
            (json!({"do_remote_decode": 1}), "true or false"),
            (
                json!({"do_remote_decode": true, "transfer_id": 0}),
                "from 1 to",
            ),
            (
                json!({"do_remote_decode": true, "transfer_id": MAX_TICKET + 1}),
                "from 1 to",
            ),
            (
                json!({"do_remote_prefill": true, "prefetch": true}),
                "remote_host",
            ),
        ] {
            let error = KvRequest::parse(Some(bad)).unwrap_err().body().error;
            assert_eq!(error.param.as_deref(), Some(FIELD));
            assert!(error.message.contains(word), "{}", error.message);
        }
    }
}
