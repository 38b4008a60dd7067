//! The rules by number, so that reports, doubles and documentation speak of the same ones.

/// A rule of the suites: P for providers, A for runtime adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// Support depends on provider and ownership alone.
    P1,
    /// The same object renders to the same bytes.
    P2,
    /// Metadata, selector, replicas, owner and placement are left to the reconciler.
    P4,
    /// The Service's ports name ports of the containers, protocols spelled out.
    P5,
    /// Readiness asks for what a binding needs, the password included.
    P6,
    /// Credentials are references to Secrets, never arguments.
    P7,
    /// What cannot be honoured is an error.
    P8,
    /// Somebody else's store renders no object but names its protocol.
    P9,
    /// No privileges, host namespaces, host paths or node ports.
    P10,
    /// Support is total; an unknown runtime is not supported.
    A1,
    /// A binding is judged without its endpoint.
    A2,
    /// No containers, no engine among several, missing blocks: errors.
    A3,
    /// Twice is once, and the same input gives the same output.
    A5,
    /// After an edit of the object nothing of the old wiring is left.
    A6,
    /// Somebody else's object under a name of ours is an error.
    A7,
    /// Other people's entries keep value and order.
    A8,
    /// Image, command, resources and placement of the engine stay.
    A9,
    /// What is injected into the engine is reserved or declared to be safely overridable.
    A10,
    /// What is reserved is injected for some fixture.
    A11,
    /// A binding of an unknown protocol is refused, by both methods.
    A12,
    /// Credentials do not reach the engine, nor any argument.
    A13,
    /// No sidecar without a model; its arguments are ones that the subscriber takes.
    A14,
    /// The sidecar's identity comes from the downward API.
    A15,
    /// Without a router a router's Pod comes back as it is, whatever it is.
    A16,
    /// Pods that cannot be classified are refused, those of the fixtures are not.
    A17,
    /// What is listed as supported is supported.
    A18,
    /// An API server would admit the result.
    A19,
    /// Beside the shipped adapters none of the shipped samples changes hands.
    A20,
    /// Defaults of an API server make no difference.
    A21,
    /// The worked Pods come out, list order included.
    A22,
}

impl Rule {
    /// In one sentence.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::P1 => "support depends on provider and ownership alone",
            Self::P2 => "the same object renders to the same bytes",
            Self::P4 => "metadata, selector, replicas, owner and placement are the reconciler's",
            Self::P5 => "the Service's ports name container ports and protocols",
            Self::P6 => "readiness asks for what a binding needs",
            Self::P7 => "credentials are references to Secrets",
            Self::P8 => "what cannot be honoured is an error",
            Self::P9 => "somebody else's store renders no object but names its protocol",
            Self::P10 => "no privileges, host namespaces, host paths or node ports",
            Self::A1 => "support is total, and an unknown runtime has none",
            Self::A2 => "a binding is judged without its endpoint",
            Self::A3 => "what is missing or ambiguous is an error",
            Self::A5 => "twice is once, and the same input gives the same output",
            Self::A6 => "an edit leaves nothing of the old wiring",
            Self::A7 => "a foreign object under a reserved name is an error",
            Self::A8 => "other people's entries keep value and order",
            Self::A9 => "image, command, resources and placement stay",
            Self::A10 => "what is injected is reserved or safely overridable",
            Self::A11 => "what is reserved is injected",
            Self::A12 => "an unknown protocol is refused",
            Self::A13 => "credentials do not reach the engine",
            Self::A14 => "no sidecar without a model, and no argument that it does not know",
            Self::A15 => "the sidecar's identity comes from the downward API",
            Self::A16 => "without a router its Pod stays as it is",
            Self::A17 => "what cannot be classified is refused",
            Self::A18 => "what is listed is supported",
            Self::A19 => "an API server would admit the result",
            Self::A20 => "the shipped samples keep their adapters",
            Self::A21 => "defaults of an API server make no difference",
            Self::A22 => "the worked Pods come out",
        }
    }
}
