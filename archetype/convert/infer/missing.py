"""Parts that Archetype does not have, by the tensors or keys of models that need them."""

# Parts that Archetype does not have, by the tensor names, keys or model types of models that need them.
MISSING_BY_TENSOR: tuple[tuple[str, str], ...] = (
    (r".*\.time_mix\w*(\..*)?", "the RWKV recurrence"),
    (r".*\.(recurrent|qkv_conv\w*)(\..*)?", "an unknown recurrent or state-space mixer"),
    (r".*\.mamba\.dt_proj_weight", "Mamba with several heads"),
    (r".*\.shared_trans(f|former)\..*", "shared layers that read the residual stream and the embedding together"),
    (r".*\.attn_sink_proj\..*", "attention sinks computed from each token"),
    (r".*\.\w+_l2_clip\.scale", "clipping of query norms"),
    (r".*\.attn_res\.attn_queries\..*", "separate attention over depth for queries, keys and values"),
    (r".*\.[kv]_sconv\.weight_proj", "convolutions with token-dependent weights"),
    (r".*\.\w+_cross_pass\w*", "messages between passes of a loop"),
    (r".*\.compressor\..*", "compressed keys and values"),
    (r".*\.(self_attn\.linear_attn|mlp\.linear_mlp)\.weight", "a single matrix instead of attention or an MLP"),
    (r".*\.self_attention\.experts\..*", "a mixture of attention heads (MoA)"),
    (r".*\.ngram_embeddings\..*", "n-stream prediction of the next n tokens"),
    (r".*\.relative_pos_embeddings\..*", "relative positions computed by projections"),
    (r"transformer\.lang_embeddings\..*", "language embeddings"),
    (r".*\.\w+_proj\.linears?\..*", "one projection per codebook"),
    (r".*\.(sqk|s_gate|suv_\w+)", "learned factors of queries, gates and hidden features (nGPT)"),
    (r"lm_head\.logit_scale", "a learned factor for each logit"),
    (r"reformer\.encoder\..*", "reversible layers with two streams"),
    (r".*\.self_attention\.query_key\..*", "locality-sensitive hashing (LSH) attention"),
    (r".*\.mask_emb", "two-stream permutation language modeling (XLNet)"),
    (r"cpmant\..*", "bidirectional attention within a prompt, after learned prefix vectors"),
    (
        r".*\.indexer\.(?!(wq|wq_b|wk|weights_proj|[qk]_proj|index_qk_proj|[qk]_(layer)?norm)\.|index_kpool).*",
        "sparse attention with an unknown kind of learned index",
    ),
    (r".*\.(shape|pronunciation)_embed\..*", "embeddings of a character's shape and pronunciation"),
    (r".*\.act_fn\..*", "an activation with learned parameters"),
    (r".*\.mlp\.(down|up)_embed\..*", "single-neuron experts selected by product keys"),
)
# The same for a tensor that was not recognized; elsewhere tensors of such names are recognized.
MISSING_BY_PLACE: tuple[tuple[str, str], ...] = (
    (r".*\.attn_sink", "an unknown form of attention sinks"),
    (r".*\.(hc_\w+|attn_res)(\..*)?", "a residual wiring with unknown tensor names"),
    (r".*\.self_attn\.[qkvo]_proj\.\w+", "two mixers in parallel in a layer"),
    (r".*norm\w*\.(weight|bias)", "a norm at an unknown position"),
    (r".*\.(A_log|conv1d)(\..*)?", "an unknown recurrent or state-space mixer"),
    (r".*\.conv\..*", "an unknown convolution"),
    (r".*\.experts\.\w+(\.weight|\.bias)?", "stacked experts in an unknown order"),
)
