//! Two tenants of one server, and what tells them apart.

use anyhow::{Context, Result};
use pb_contract::Stream;
use pb_load::Endpoint;
use serde::Serialize;

use crate::args::LeakArgs;

/// What tells the tenants apart. Keys and header values are never kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub(crate) enum ToldApart {
    /// The request field `cache_salt`.
    CacheSalt,
    /// A header.
    Header {
        /// Its name.
        name: String,
    },
    /// Two API keys.
    ApiKeys,
    /// Nothing: any two callers.
    Nothing,
}

impl ToldApart {
    /// As people read it.
    pub(crate) fn text(&self) -> String {
        match self {
            ToldApart::CacheSalt => "told apart by the field cache_salt".to_owned(),
            ToldApart::Header { name } => format!("told apart by the header {name}"),
            ToldApart::ApiKeys => "told apart by their API keys".to_owned(),
            ToldApart::Nothing => "not told apart: any two callers".to_owned(),
        }
    }
}

/// The tenants: A primes and comes again, B only asks.
#[derive(Clone, Debug)]
pub(crate) struct Tenants {
    /// As A speaks.
    pub(crate) a: Endpoint,
    /// As B speaks.
    pub(crate) b: Endpoint,
    /// Their salts, if these tell them apart.
    pub(crate) salts: Option<[String; 2]>,
    /// What tells them apart.
    pub(crate) told_apart_by: ToldApart,
}

impl Tenants {
    /// Whether both speak to the server alike, but for a field of the body.
    pub(crate) fn alike(&self) -> bool {
        self.a == self.b
    }

    /// From the arguments. Random names depend on the nonce, so that two runs are four tenants.
    ///
    /// # Errors
    /// A bad address or header, or an environment variable that is not set.
    pub(crate) fn new(args: &LeakArgs, nonce: u64) -> Result<Tenants> {
        let base = base(args)?;
        let mut stream = Stream::new(nonce, "leak tenants");
        let mut name = || format!("{:016x}{:016x}", stream.next_u64(), stream.next_u64());
        let names = [name(), name()];
        let mut tenants = Tenants {
            a: base.clone(),
            b: base,
            salts: None,
            told_apart_by: ToldApart::Nothing,
        };
        if let Some(header) = &args.tenant_header {
            let [a, b] = match &args.tenant_values {
                Some((a, b)) => [a.clone(), b.clone()],
                None => names,
            };
            let place = "--tenant-header";
            tenants.a = tenants.a.with_header(header, &a).context(place)?;
            tenants.b = tenants.b.with_header(header, &b).context(place)?;
            tenants.told_apart_by = ToldApart::Header {
                name: header.clone(),
            };
        } else if let Some(variable) = &args.other_key_env {
            let other = key("--other-key-env", variable)?;
            let place = || format!("--other-key-env {variable}");
            tenants.b = tenants.b.with_api_key(other).with_context(place)?;
            tenants.told_apart_by = ToldApart::ApiKeys;
        } else if !args.no_salt {
            tenants.salts = Some(names);
            tenants.told_apart_by = ToldApart::CacheSalt;
        }
        // Neither tenant's key is shown, whoever's answer has it.
        let a = tenants.a.clone();
        tenants.a = tenants.a.beside(&tenants.b);
        tenants.b = tenants.b.beside(&a);
        Ok(tenants)
    }
}

fn base(args: &LeakArgs) -> Result<Endpoint> {
    let mut endpoint = Endpoint::parse(&args.base_url)
        .context("--base-url")?
        .with_model(&args.model);
    if let Some(route) = &args.endpoint {
        endpoint = endpoint.with_route(route).context("--endpoint")?;
    }
    if let Some(variable) = &args.api_key_env {
        let place = || format!("--api-key-env {variable}");
        let key = key("--api-key-env", variable)?;
        endpoint = endpoint.with_api_key(key).with_context(place)?;
    }
    for (name, value) in &args.header {
        endpoint = endpoint.with_header(name, value).context("--header")?;
    }
    Ok(endpoint)
}

/// The key in an environment variable that `flag` names.
pub(crate) fn key(flag: &str, variable: &str) -> Result<String> {
    std::env::var(variable)
        .ok()
        .filter(|key| !key.is_empty())
        .with_context(|| format!("{flag} {variable}: the variable is not set; export it first"))
}

/// The command line without the values of headers, which may be keys.
pub(crate) fn shown_command(words: impl IntoIterator<Item = String>) -> Vec<String> {
    const SECRET: [&str; 2] = ["--header", "--tenant-values"];
    let hide = |flag: &str, value: &str| match value.split_once('=') {
        Some((name, _)) if flag == "--header" => format!("{name}=(hidden)"),
        _ => "(hidden)".to_owned(),
    };
    let mut before: Option<&str> = None;
    let mut shown = Vec::new();
    for word in words {
        let same = SECRET.into_iter().find(|flag| {
            let rest = word.strip_prefix(flag);
            rest.is_some_and(|rest| rest.starts_with('='))
        });
        let next = SECRET.into_iter().find(|flag| *flag == word);
        shown.push(match (before, same) {
            (Some(flag), _) => hide(flag, &word),
            (None, Some(flag)) => format!("{flag}={}", hide(flag, &word[flag.len() + 1..])),
            (None, None) => word,
        });
        before = next;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::shown_command;

    #[test]
    fn header_and_tenant_values_do_not_get_into_the_manifest() {
        let words = [
            "leak",
            "--header",
            "x-key=s3cret",
            "--header=x=s3cret",
            "--tenant-values",
            "s3cret,s3cret2",
            "--tenant-values=s3cret,b",
            "--json",
        ];
        let shown = shown_command(words.map(String::from));
        let expected = [
            "leak",
            "--header",
            "x-key=(hidden)",
            "--header=x=(hidden)",
            "--tenant-values",
            "(hidden)",
            "--tenant-values=(hidden)",
            "--json",
        ];
        assert_eq!(shown, expected);
    }
}
