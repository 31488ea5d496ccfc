//! From the text that somebody gave to what it means.

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, time::Duration};

use super::{Address, LogFormat, OptionsError, flags::Takes};
use crate::manager::polite::Pace;

/// A text, and where it was given, so that an error sends people to the right place.
#[derive(Clone)]
pub(super) struct Value {
    option: String,
    text: String,
}

impl Value {
    pub(super) fn new(option: String, text: String) -> Self {
        Self { option, text }
    }

    pub(super) fn of_environment(variable: String, text: OsString) -> Result<Self, OptionsError> {
        match text.into_string() {
            Ok(text) => Ok(Self::new(variable, text)),
            Err(text) => Err(Self::new(variable, text.to_string_lossy().into_owned()).wrong("is not text")),
        }
    }

    pub(super) fn text(self) -> String {
        self.text
    }

    pub(super) fn unless_empty(self) -> Option<String> {
        (!self.text.is_empty()).then_some(self.text)
    }

    /// With the spellings that Go knows.
    pub(super) fn switch(self) -> Result<bool, OptionsError> {
        match self.text.as_str() {
            "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true),
            "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false),
            _ => Err(self.wrong("is neither true nor false")),
        }
    }

    pub(super) fn at_least_one<T: std::str::FromStr + Default + PartialEq>(self, why: &str) -> Result<T, OptionsError> {
        match self.text.parse() {
            Ok(number) if number != T::default() => Ok(number),
            _ => Err(self.wrong(why)),
        }
    }

    pub(super) fn qps(self) -> Result<f64, OptionsError> {
        match self.text.parse::<f64>() {
            Ok(qps) if qps == 0.0 || (qps >= Pace::SLOWEST && qps.is_finite()) => Ok(qps),
            _ => Err(self.wrong("is not a number of requests a second: 0, or 0.001 and more")),
        }
    }

    pub(super) fn time(self) -> Result<Duration, OptionsError> {
        if let Ok(seconds) = self.text.parse() {
            return Ok(Duration::from_secs(seconds));
        }
        let spelled: Option<jiff::SignedDuration> = self.text.parse().ok();
        match spelled.map(Duration::try_from) {
            Some(Ok(time)) => Ok(time),
            _ => Err(self.wrong("is neither a number of seconds nor a time such as 1m30s")),
        }
    }

    pub(super) fn log_format(self) -> Result<LogFormat, OptionsError> {
        match self.text.as_str() {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(self.wrong("is neither text nor json")),
        }
    }

    pub(super) fn user_agent(self) -> Result<String, OptionsError> {
        match http::HeaderValue::from_str(&self.text) {
            Ok(_) => Ok(self.text),
            Err(_) => Err(self.wrong("cannot be sent as a user agent")),
        }
    }

    /// Names by commas.
    pub(super) fn names(&self) -> Vec<String> {
        let names = self.text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    }

    /// Each is watched by itself, so one that cannot exist would never be in sync.
    pub(super) fn namespaces(self) -> Result<Vec<String>, OptionsError> {
        let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let names = self.text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let mut namespaces = Vec::new();
        for name in names {
            if name.len() > 63 || !name.chars().all(is_letter) || name.starts_with('-') || name.ends_with('-') {
                let why = format!("names {name:?}, which no namespace can be called");
                return Err(self.wrong(&why));
            }
            if !namespaces.iter().any(|known| known == name) {
                namespaces.push(name.to_owned());
            }
        }
        Ok(namespaces)
    }

    /// `:8080` is every address of this machine; `0` is none.
    pub(super) fn address(self) -> Result<Option<Address>, OptionsError> {
        if self.text == "0" || self.text.is_empty() {
            return Ok(None);
        }
        match self.text.parse() {
            Ok(address) => Ok(Some(address)),
            Err(why) => Err(self.wrong(why)),
        }
    }

    /// Where traces go: the collector's usual path, unless another one is given.
    pub(super) fn endpoint(self) -> Result<Option<http::Uri>, OptionsError> {
        if self.text.is_empty() {
            return Ok(None);
        }
        let is_bare = |uri: &http::Uri| uri.path() == "/" && uri.query().is_none();
        let whole = |uri: &http::Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        let uri: Option<http::Uri> = self.text.parse().ok().filter(whole);
        let uri = match uri {
            Some(uri) if is_bare(&uri) => format!("{}/v1/traces", self.text.trim_end_matches('/')).parse().ok(),
            other => other,
        };
        match uri {
            Some(uri) => Ok(Some(uri)),
            None => Err(self.wrong("is not a URL of http or https")),
        }
    }

    fn wrong(self, why: &str) -> OptionsError {
        OptionsError::Value {
            option: self.option,
            value: self.text,
            why: why.to_owned(),
        }
    }
}

/// The options that a file gives; a name without a value gives none. `takes` knows the names that there are.
pub(super) fn read_file(
    path: PathBuf,
    takes: impl Fn(&str) -> Option<Takes>,
) -> Result<BTreeMap<String, Value>, OptionsError> {
    let contents = match std::fs::read_to_string(&path) {
        Ok(contents) => contents,
        Err(source) => return Err(OptionsError::File { path, source }),
    };
    let wrong = |why: String| OptionsError::Contents {
        path: path.clone(),
        why,
    };
    let given: BTreeMap<String, serde_json::Value> =
        serde_saphyr::from_str(&contents).map_err(|error| wrong(error.to_string()))?;
    let mut values = BTreeMap::new();
    for (name, value) in given {
        let takes = takes(&name).ok_or_else(|| wrong(format!("{name:?} is no option")))?;
        let text = match &value {
            serde_json::Value::Null => continue,
            serde_json::Value::Array(values) if takes == Takes::Values => {
                let texts: Option<Vec<String>> = values.iter().map(scalar).collect();
                texts.map(|texts| texts.join(","))
            }
            other => scalar(other),
        };
        let text = text.ok_or_else(|| wrong(format!("{name:?} cannot be {value}")))?;
        let option = format!("{name} in {}", path.display());
        values.insert(name, Value::new(option, text));
    }
    Ok(values)
}

/// YAML reads a name of digits as a number: what counts is what was written.
fn scalar(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Number(number) => Some(number.to_string()),
        serde_json::Value::Bool(on) => Some(on.to_string()),
        _ => None,
    }
}
