//! Token lists as scripts write them: numbers, `{"range":[first,end]}`, `{"repeat":[token,count]}`,
//! and lists of these.

use pb_contract::TokenId;
use serde_json::Value;

use crate::error::ReplayError;
use crate::fields::wrong;

/// Tokens in one line at most: a script line must not be able to ask for all memory.
pub(crate) const MAX_TOKENS: usize = 1 << 24;

/// The tokens that `value` stands for; `{"range":[1,4]}` is 1, 2, 3.
pub(crate) fn parse(key: &str, value: &Value) -> Result<Vec<TokenId>, ReplayError> {
    let mut tokens = Vec::new();
    match value {
        Value::Array(pieces) => pieces
            .iter()
            .try_for_each(|piece| append(key, piece, &mut tokens))?,
        piece => append(key, piece, &mut tokens)?,
    }
    Ok(tokens)
}

fn append(key: &str, piece: &Value, tokens: &mut Vec<TokenId>) -> Result<(), ReplayError> {
    if let Value::Number(_) = piece {
        tokens.push(token(key, piece)?);
        return Ok(());
    }
    let pair = |name: &str| match piece.as_object() {
        Some(map) if map.len() == 1 => map.get(name).and_then(Value::as_array).map(Vec::as_slice),
        _ => None,
    };
    match (pair("range"), pair("repeat")) {
        (Some([first, end]), _) => {
            let (first, end) = (token(key, first)?, token(key, end)?);
            reserve(key, piece, tokens.len(), end.saturating_sub(first) as usize)?;
            tokens.extend(first..end);
        }
        (_, Some([repeated, count])) => {
            let (repeated, count) = (token(key, repeated)?, token(key, count)? as usize);
            reserve(key, piece, tokens.len(), count)?;
            tokens.extend(std::iter::repeat_n(repeated, count));
        }
        _ => {
            return Err(wrong(
                key,
                piece,
                "must be a token, {\"range\":[first,end]} or {\"repeat\":[token,count]}",
            ));
        }
    }
    Ok(())
}

fn reserve(key: &str, piece: &Value, have: usize, more: usize) -> Result<(), ReplayError> {
    match have.saturating_add(more) > MAX_TOKENS {
        true => Err(wrong(
            key,
            piece,
            "is too long: a line takes 16,777,216 tokens",
        )),
        false => Ok(()),
    }
}

fn token(key: &str, value: &Value) -> Result<TokenId, ReplayError> {
    value
        .as_u64()
        .and_then(|n| TokenId::try_from(n).ok())
        .ok_or_else(|| wrong(key, value, "must be a token id, 0 to 4294967295"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pieces_are_joined_in_order() {
        let parsed = |value: Value| parse("tokens", &value).unwrap();
        assert_eq!(parsed(json!([1, 2, 3])), [1, 2, 3]);
        assert_eq!(parsed(json!({"range": [1, 4]})), [1, 2, 3]);
        assert_eq!(parsed(json!({"repeat": [7, 3]})), [7, 7, 7]);
        assert_eq!(
            parsed(json!([{"range": [1, 3]}, 9, {"repeat": [0, 2]}])),
            [1, 2, 9, 0, 0]
        );
        assert!(parsed(json!({"range": [5, 2]})).is_empty());
    }

    #[test]
    fn what_is_no_token_is_refused() {
        for bad in [
            json!("x"),
            json!([-1]),
            json!([1.5]),
            json!([4294967296u64]),
            json!({"range": [1]}),
            json!({"range": [1, 2], "repeat": [1, 2]}),
            json!({"repeat": [1, 16777217]}),
            json!([[1]]),
            json!(null),
        ] {
            assert!(parse("tokens", &bad).is_err(), "{bad}");
        }
    }
}
