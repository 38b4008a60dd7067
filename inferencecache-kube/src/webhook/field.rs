//! One violation of one field, and the words for it.

use std::fmt;

/// What is wrong, as the API of Kubernetes classifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Violation {
    /// Something is missing.
    Required,
    /// The value is malformed or out of bounds.
    Invalid,
    /// It must not be there.
    Forbidden,
    /// The value is none of a list.
    NotSupported,
}

impl Violation {
    /// The cause's `reason`.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::Forbidden => "FieldValueForbidden",
            Self::NotSupported => "FieldValueNotSupported",
        }
    }
}

/// One violation. Two are the same if all four parts are; the value is rendered, so that it compares by what is read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldError {
    /// What is wrong.
    pub violation: Violation,
    /// Where: `spec.lmCache.topology`, `….limits[memory]`, `….args[0]`.
    pub path: String,
    /// What was given, rendered; empty where that says nothing.
    pub value: String,
    /// What is allowed, or why not.
    pub detail: String,
}

impl FieldError {
    /// Something is missing.
    pub fn required(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Violation::Required, path, "", detail)
    }

    /// The value cannot be used.
    pub fn invalid(path: impl Into<String>, value: impl fmt::Debug, detail: impl Into<String>) -> Self {
        Self::new(Violation::Invalid, path, format!("{value:?}"), detail)
    }

    /// It must not be there.
    pub fn forbidden(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Violation::Forbidden, path, "", detail)
    }

    /// The value is none of `allowed`.
    pub fn not_supported(path: impl Into<String>, value: impl fmt::Debug, allowed: &[&str]) -> Self {
        let allowed: Vec<String> = allowed.iter().map(|name| format!("{name:?}")).collect();
        Self::new(
            Violation::NotSupported,
            path,
            format!("{value:?}"),
            format!("supported values: {}", allowed.join(", ")),
        )
    }

    fn new(violation: Violation, path: impl Into<String>, value: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { violation, path: path.into(), value: value.into(), detail: detail.into() }
    }

    /// The cause's message.
    #[must_use]
    pub fn message(&self) -> String {
        let Self { violation, value, detail, .. } = self;
        match violation {
            Violation::Required => format!("Required value: {detail}"),
            Violation::Invalid => format!("Invalid value: {value}: {detail}"),
            Violation::Forbidden => format!("Forbidden: {detail}"),
            Violation::NotSupported => format!("Unsupported value: {value}: {detail}"),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message())
    }
}
