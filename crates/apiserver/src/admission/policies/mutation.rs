//! What a mutation makes of an object.

use moorline_machinery::cel::{CelError, Program};
use serde_json::Value;

use super::roster::SCOPE;

/// One mutation of a policy.
pub(super) struct Mutation {
    sort: Sort,
    program: Result<Program, CelError>,
}

enum Sort {
    Configuration,
    Patch,
}

/// What a mutation came to.
pub(super) enum Made {
    /// What the object shall say, to be laid over it.
    Configuration(Value),
    /// Operations of a JSON patch.
    Patch(Value),
}

impl Mutation {
    pub(super) fn read(mutation: &Value) -> Self {
        let (sort, field) = match mutation["patchType"].as_str() {
            Some("JSONPatch") => (Sort::Patch, "jsonPatch"),
            _ => (Sort::Configuration, "applyConfiguration"),
        };
        let expression = mutation[field]["expression"].as_str().unwrap_or_default();
        Self {
            sort,
            program: Program::compile_mutation(expression, &SCOPE),
        }
    }

    pub(super) fn make(&self, bindings: &[(&str, &Value)]) -> Result<Made, String> {
        let program = self.program.as_ref().map_err(ToString::to_string)?;
        let made = program.evaluate(bindings).map_err(|error| error.to_string())?;
        Ok(match self.sort {
            Sort::Configuration => Made::Configuration(made),
            Sort::Patch => Made::Patch(made),
        })
    }
}
