//! In which form a client wants its answer.

use http::{HeaderMap, header};
use moorline_machinery::status::ApiError;

use crate::path::Verb;

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The object as it is.
    Whole,
    /// Only its metadata; of a list, that of each item.
    Metadata(Number),
    /// As rows of a table.
    Table,
}

/// Whether the metadata of one object or of a list was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// Of one.
    One,
    /// Of a list.
    Many,
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// What a client and this server agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The form.
    pub(crate) form: Form,
    /// The encoding.
    pub(crate) encoding: Encoding,
}

/// One choice of an Accept header, taken apart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice<'h> {
    /// Such as `application/json`.
    pub(crate) media_type: &'h str,
    /// Such as `as=Table`.
    pub(crate) parameters: Vec<(&'h str, &'h str)>,
}

impl Choice<'_> {
    /// The value of a parameter.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| *value)
    }

    fn quality(&self) -> f32 {
        self.parameter("q").and_then(|q| q.parse().ok()).unwrap_or(1.0)
    }
}

/// The choices of a request, the preferred ones first.
pub(crate) fn choices(headers: &HeaderMap) -> Vec<Choice<'_>> {
    let mut choices: Vec<Choice<'_>> = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|choice| {
            let mut parts = choice.split(';').map(str::trim);
            let media_type = parts.next().filter(|media_type| !media_type.is_empty())?;
            let parameters = parts.filter_map(|parameter| parameter.split_once('=')).collect();
            Some(Choice { media_type, parameters })
        })
        .collect();
    choices.sort_by(|a, b| b.quality().total_cmp(&a.quality()));
    choices
}

/// What the path of a built-in resource offers, of which nothing is known yet but its verb.
pub(crate) fn offered(headers: &HeaderMap, verb: Verb) -> Result<(), ApiError> {
    const ONE: [&str; 3] = [
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
    ];
    const MANY: [&str; 5] = [
        ONE[0],
        ONE[1],
        ONE[2],
        "application/json;stream=watch",
        "application/vnd.kubernetes.protobuf;stream=watch",
    ];
    let choices = choices(headers);
    let suits = |choice: &Choice<'_>| choice.media_type == "*/*" || ONE.contains(&choice.media_type);
    if choices.is_empty() || choices.iter().any(suits) {
        return Ok(());
    }
    Err(if matches!(verb, Verb::List | Verb::Watch) {
        ApiError::not_available(&MANY)
    } else {
        ApiError::not_available(&ONE)
    })
}

/// What to answer an ordinary request with: the first choice that can be served. No choice at all means JSON.
pub(crate) fn answer(headers: &HeaderMap, tables: bool) -> Result<Answer, ApiError> {
    let choices = choices(headers);
    if choices.is_empty() {
        return Ok(Answer {
            form: Form::Whole,
            encoding: Encoding::Json,
        });
    }
    choices
        .iter()
        .find_map(|choice| serve(choice, tables))
        .ok_or_else(|| ApiError::not_acceptable(&["application/json", "application/yaml"]))
}

fn serve(choice: &Choice<'_>, tables: bool) -> Option<Answer> {
    let encoding = match choice.media_type {
        "application/json" | "application/*" | "*/*" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        _ => return None,
    };
    let form = match (choice.parameter("as"), choice.parameter("g"), choice.parameter("v")) {
        (None, ..) => Form::Whole,
        (Some("Table"), Some("meta.k8s.io"), Some("v1")) if tables => Form::Table,
        (Some("PartialObjectMetadata"), Some("meta.k8s.io"), Some("v1")) => Form::Metadata(Number::One),
        (Some("PartialObjectMetadataList"), Some("meta.k8s.io"), Some("v1")) => Form::Metadata(Number::Many),
        _ => return None,
    };
    Some(Answer { form, encoding })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(accept: &str) -> Option<Answer> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        answer(&headers, true).ok()
    }

    #[test]
    fn the_first_choice_that_can_be_served_is_taken() {
        let json = |form| {
            Some(Answer {
                form,
                encoding: Encoding::Json,
            })
        };
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(agreed(kubectl), json(Form::Table));
        assert_eq!(
            agreed("application/vnd.kubernetes.protobuf,application/json"),
            json(Form::Whole)
        );
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
        assert_eq!(agreed(metadata), json(Form::Metadata(Number::Many)));
        assert_eq!(agreed("*/*"), json(Form::Whole));
        assert_eq!(agreed("application/yaml").unwrap().encoding, Encoding::Yaml);
        assert_eq!(
            agreed("application/json;q=0.1, application/yaml;q=0.9")
                .unwrap()
                .encoding,
            Encoding::Yaml
        );
        assert_eq!(agreed("application/vnd.kubernetes.protobuf"), None);
        assert_eq!(agreed("application/json;as=Table;v=v1beta1;g=meta.k8s.io"), None);
    }
}
