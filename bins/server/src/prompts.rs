//! What makes tokens of prompt text.

use std::sync::Arc;

use inferencecache_core::tokenizer::Tokenizer;
use inferencecache_wire::metrics::Metrics;

/// Loads the models below `dir` and says what became of them. Never fails: what cannot be loaded is answered `NO_HINT`.
#[cfg(feature = "tokenizer")]
pub(crate) async fn tokenizer(dir: String, metrics: &Metrics) -> Option<Arc<dyn Tokenizer>> {
    use std::path::Path;

    use inferencecache_wire::tokenize::Models;

    let load = move || Models::load(Path::new(&dir));
    // Fails only when the runtime ends, and with it the process.
    let models = tokio::task::spawn_blocking(load).await.ok()?;
    models.report().log();
    metrics.set_tokenizer_models(models.len());
    Some(Arc::new(models))
}

/// Says that this build has no tokenizer.
#[cfg(not(feature = "tokenizer"))]
pub(crate) async fn tokenizer(dir: String, _metrics: &Metrics) -> Option<Arc<dyn Tokenizer>> {
    tracing::warn!(
        reason = "this build has no tokenizer",
        tokenizer_models_dir = dir,
        effect = "requests that carry only prompt_text are answered NO_HINT",
        "tokenizer_models_dir_ignored"
    );
    None
}
