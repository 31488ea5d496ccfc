//! What is particular to a kind. The generic handler asks; most kinds have little to say.

use std::time::Duration;

use moorline_machinery::{
    field::FieldError,
    meta::{Finalizers, Generation, Look, UnversionedUpdate},
    names::NameRule,
};
use moorline_store::Revision;
use serde_json::Value;

use crate::builtin::conform::Purpose;
use crate::custom::CustomKind;
use crate::custom::PrinterColumn;

/// What becomes of the objects that a deleted one owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// They go after it.
    Background,
    /// They go before it.
    Foreground,
    /// They stay.
    Orphan,
}

/// What is wrong with an update.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// With the object that comes of it.
    pub(crate) object: Vec<FieldError>,
    /// With the change.
    pub(crate) change: Vec<FieldError>,
}

/// Where the numbers of a scale are found, as JSON pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScalePaths {
    /// How many are wanted.
    pub(crate) spec: String,
    /// How many there are.
    pub(crate) status: String,
    /// Which pods count.
    pub(crate) selector: Option<String>,
}

impl ScalePaths {
    /// Where built-in kinds have them.
    pub(crate) fn workload() -> Self {
        Self {
            spec: "/spec/replicas".to_owned(),
            status: "/status/replicas".to_owned(),
            selector: Some("/spec/selector".to_owned()),
        }
    }
}

/// The rules of a kind beyond its schema.
pub(crate) trait Strategy: Send + Sync {
    /// What its names may look like.
    fn name_rule(&self) -> NameRule {
        NameRule::DnsSubdomain
    }

    /// Whether a PUT of an object that is not there makes it.
    fn create_on_update(&self) -> bool {
        false
    }

    /// What a PUT without a resource version does.
    fn unversioned_update(&self) -> UnversionedUpdate {
        UnversionedUpdate::Overwrites
    }

    /// Which changes raise the generation.
    fn generation(&self) -> Generation {
        Generation::ButStatus
    }

    /// How an update of an object, or of its status alone, looks at the metadata, beside what is done for all kinds.
    fn looks(&self, status_only: bool) -> &[Look] {
        let _ = status_only;
        &[Look::Change(Finalizers::Any)]
    }

    /// How the metadata of a new object is looked at; none where that is done only when all else is well.
    fn first_look(&self) -> Option<Look> {
        Some(Look::Whole(Finalizers::Any))
    }

    /// Where objects are kept, as some errors say; under group and plural unless told.
    fn stored_under(&self) -> Option<&str> {
        None
    }

    /// Whether a deletion is a wish that is written down, and carried out by a controller. Such an object gets no grace.
    fn is_deleted_by_controller(&self) -> bool {
        false
    }

    /// Whether objects are served otherwise than they are stored.
    fn changes_on_read(&self) -> bool {
        false
    }

    /// Brings a stored object into the state in which it is served.
    fn on_read(&self, object: &mut Value) {
        let _ = object;
    }

    /// Whether what was written at a revision is served as it is stored, but for its type, without a look at
    /// [`on_read`](Self::on_read).
    fn serves_as_stored(&self, written: Revision) -> bool {
        let _ = written;
        !self.changes_on_read()
    }

    /// Brings an object that is served into the form in which it is stored.
    fn on_store(&self, object: &mut Value) {
        let _ = object;
    }

    /// Reads an object as its type wants it, or says why that cannot be done.
    fn conform(&self, object: &mut Value, purpose: Purpose) -> Result<(), String> {
        let _ = (object, purpose);
        Ok(())
    }

    /// Whether strategic merge patches are understood.
    fn takes_strategic_patches(&self) -> bool {
        false
    }

    /// Whether lists carry the type of each item. Built-in kinds leave it out.
    fn items_carry_type(&self) -> bool {
        false
    }

    /// How long a deletion that names no time gives the object; none goes at once.
    fn default_grace(&self, object: &Value) -> Option<Duration> {
        let _ = object;
        None
    }

    /// What happens to the objects that a deleted one owns when the request does not say.
    fn default_propagation(&self) -> Propagation {
        Propagation::Background
    }

    /// Whether a deletion may skip its grace, whatever the request says.
    fn goes_at_once(&self, object: &Value) -> bool {
        let _ = object;
        false
    }

    /// Where the numbers of a scale are found, for kinds that scale.
    fn scale(&self) -> Option<ScalePaths> {
        None
    }

    /// Takes away what a client may not say of the status of a new object.
    fn drop_status(&self, object: &mut Value) {
        let _ = object;
    }

    /// Keeps of the old object what an update of the status may not touch, beyond all that is not status.
    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        let _ = (object, old);
    }

    /// What everyone is told who deletes an object, with or without a word on what it owns.
    fn warnings_on_delete(&self, named_propagation: bool) -> Option<&'static str> {
        let _ = named_propagation;
        None
    }

    /// Whether the answer to a delete is the object rather than a status.
    fn returns_deleted(&self) -> bool {
        false
    }

    /// Whether something besides its finalizers keeps a deleted object.
    fn is_held(&self, object: &Value) -> bool {
        let _ = object;
        false
    }

    /// Brings an object into the state of being deleted, beyond its metadata.
    fn prepare_delete(&self, object: &mut Value) {
        let _ = object;
    }

    /// Which fields a write through a door, such as `status`, does not touch, whatever it says: those are nobody's.
    fn resets(&self, door: &str, has_status: bool) -> &'static [&'static str] {
        match door {
            "" if has_status => &["status"],
            "status" => &["spec"],
            _ => &[],
        }
    }

    /// What of the metadata a write of the status may change.
    fn status_writes(&self) -> &'static [&'static str] {
        &[]
    }

    /// The fields besides name and namespace that objects can be selected by.
    fn selectable_field_names(&self) -> &[Box<str>] {
        &[]
    }

    /// The value of such a field.
    fn selectable_field(&self, object: &Value, field: &str) -> String {
        let _ = (object, field);
        String::new()
    }

    /// The answer to a selection by another field.
    fn unknown_field(&self, field: &str) -> String {
        format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    }

    /// Fills in what a client may leave out, beyond the defaults of the schema.
    fn default(&self, object: &mut Value) {
        let _ = object;
    }

    /// Brings a new object into its first state.
    fn prepare_create(&self, object: &mut Value) {
        let _ = object;
    }

    /// Keeps of the old object what an update may not touch.
    fn prepare_update(&self, object: &mut Value, old: &Value) {
        let _ = (object, old);
    }

    /// What is wrong with a new object.
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let _ = object;
        Vec::new()
    }

    /// What is wrong with an object that is changed, and with the change.
    fn validate_update(&self, object: &Value, old: &Value) -> Findings {
        let _ = (object, old);
        Findings::default()
    }

    /// What whoever writes an object is told besides: what will hardly be meant, and what will not work for long.
    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let _ = (object, old);
        Vec::new()
    }

    /// What is wrong with a change of the status.
    fn validate_status_update(&self, object: &Value, old: &Value) -> Findings {
        self.validate_update(object, old)
    }

    /// Keeps of the old object what a write to one of its parts may not touch.
    fn prepare_part(&self, part: &str, object: &mut Value, old: &Value) {
        let _ = (part, object, old);
    }

    /// What is wrong with a write to one of an object's parts.
    fn validate_part(&self, part: &str, object: &Value, old: &Value) -> Vec<FieldError> {
        let _ = (part, object, old);
        Vec::new()
    }

    /// Why no new objects are taken, if so.
    fn creation_refused(&self) -> Option<&'static str> {
        None
    }

    /// What everyone is warned of who uses this version.
    fn deprecation(&self) -> Option<&str> {
        None
    }

    /// The columns of a table besides the name, for kinds that say so themselves.
    fn printer_columns(&self) -> Option<&[PrinterColumn]> {
        None
    }

    /// The kind as a custom one, if it is one.
    fn as_custom(&self) -> Option<&CustomKind> {
        None
    }
}

/// A kind with no rules of its own.
#[cfg(test)]
pub(crate) struct Plain;

#[cfg(test)]
impl Strategy for Plain {}
