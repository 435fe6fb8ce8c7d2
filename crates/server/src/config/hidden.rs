//! Settings that are secrets.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use zeroize::Zeroizing;

/// A text that is not shown.
#[derive(Clone, Deserialize)]
#[serde(from = "String")]
pub struct Hidden(Zeroizing<String>);

impl Hidden {
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Hidden {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl Serialize for Hidden {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("…")
    }
}
