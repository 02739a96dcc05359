//! Details of a rejection (§6.3.1).

use bytestring::ByteString;

/// Details of a rejection, built by the host.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RejectionDetails {
    field_paths: Vec<String>,
    reason: Option<String>,
    required_action: Option<String>,
    references: Vec<(String, String)>,
}

impl RejectionDetails {
    /// Starts with nothing, which is not yet valid.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a path such as `address.street`.
    #[must_use]
    pub fn field_path(mut self, path: impl Into<String>) -> Self {
        self.field_paths.push(path.into());
        self
    }

    /// Sets the reason, a token.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Sets what must be done, a token.
    #[must_use]
    pub fn required_action(mut self, action: impl Into<String>) -> Self {
        self.required_action = Some(action.into());
        self
    }

    /// Adds a reference.
    #[must_use]
    pub fn reference(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.references.push((key.into(), value.into()));
        self
    }

    /// The JSON text, if every rule holds; otherwise the broken rule.
    pub fn build(self) -> Result<ByteString, &'static str> {
        unimplemented!()
    }

    /// Checks a JSON text; the error names the broken rule.
    pub fn check(_text: &str) -> Result<(), &'static str> {
        unimplemented!()
    }
}
