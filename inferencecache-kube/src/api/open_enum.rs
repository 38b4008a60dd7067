//! Enumerations whose schema is closed and whose reading is open.
//!
//! An object may have been stored before a member was removed, or past the schema. Such a value must not make the object
//! unreadable, so every enumeration has a member `Other` with the text; the empty `Other` is what a missing value reads as.

macro_rules! open_enum {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$of:meta])* $member:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        $vis enum $name {
            $($(#[$of])* $member,)+
            /// A value that no release of this API writes; empty where a required value is missing.
            Other(String),
        }

        impl $name {
            /// The members that the schema admits, in its order.
            pub const ALLOWED: &[&str] = &[$($text),+];

            /// The value as objects spell it.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$member => $text,)+
                    Self::Other(text) => text,
                }
            }

            /// Whether nothing was given.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.as_str().is_empty()
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::Other(String::new())
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $($text => Self::$member,)+
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                Ok(Self::from(text.as_ref()))
            }
        }

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "enum": Self::ALLOWED})
            }
        }
    };
}

pub(super) use open_enum;

/// Reads an optional enumeration; the empty text counts as absent.
pub(super) fn absent_if_empty<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: for<'a> From<&'a str>,
{
    let text: Option<std::borrow::Cow<'de, str>> = serde::Deserialize::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()).map(|text| T::from(text.as_ref())))
}

/// Implements serde for a `spec` that may be missing at the root of its object, and then reads as its default. The type
/// derives both traits with `#[serde(remote = "Self")]`.
macro_rules! optional_at_root {
    ($spec:ident) => {
        impl serde::Serialize for $spec {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $spec {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Spec;

                impl<'de> serde::de::Visitor<'de> for Spec {
                    type Value = $spec;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_none<E: serde::de::Error>(self) -> Result<Self::Value, E> {
                        Ok($spec::default())
                    }

                    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
                        Ok($spec::default())
                    }

                    fn visit_some<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
                        $spec::deserialize(deserializer)
                    }
                }

                deserializer.deserialize_option(Spec)
            }
        }
    };
}

pub(super) use optional_at_root;
