"""Parts that Archetype does not have, by the tensors or keys of models that need them."""

# Parts that Archetype does not have, by the tensor names, keys or model types of models that need them.
MISSING_BY_TENSOR: tuple[tuple[str, str], ...] = (
    (r".*\.time_mix\w*(\..*)?", "the recurrence of RWKV"),
    (r".*\.(recurrent|qkv_conv\w*)(\..*)?", "a recurrent or state-space mixer of another kind"),
    (r".*\.mamba\.dt_proj_weight", "a Mamba with several heads"),
    (r".*\.attn_sink_proj\..*", "sinks that each position computes"),
    (r".*\.\w+_l2_clip\.scale", "a bound on the lengths of queries"),
    (r".*\.attn_res\.attn_queries\..*", "attention over depth apart for queries, keys and values"),
    (r".*\.[kv]_sconv\.weight_proj", "convolutions that each token computes"),
    (r".*\.\w+_cross_pass\w*", "messages between passes of a loop"),
    (r".*\.compressor\..*", "compressed keys and values"),
    (r".*\.(self_attn\.linear_attn|mlp\.linear_mlp)\.weight", "a single matrix in place of attention or a network"),
    (r".*\.self_attention\.experts\..*", "a mixture of attention heads"),
    (r".*\.ngram_embeddings\..*", "streams that predict the next n tokens"),
    (r".*\.relative_pos_embeddings\..*", "relative positions by projections"),
    (r"transformer\.lang_embeddings\..*", "embeddings of languages"),
    (r".*\.\w+_proj\.linears?\..*", "one projection per codebook"),
    (r".*\.(sqk|s_gate|suv_\w+)", "learned gains of queries, gates and hidden features (nGPT)"),
    (r"lm_head\.logit_scale", "a learned factor of each logit"),
    (r"reformer\.encoder\..*", "reversible layers with two streams"),
    (r".*\.self_attention\.query_key\..*", "attention to keys with the same hash (LSH)"),
    (r".*\.mask_emb", "predictions in any order by a second stream (XLNet)"),
    (r"cpmant\..*", "attention to later tokens of a prompt, and learned vectors before it"),
    (
        r".*\.indexer\.(?!(wq|wq_b|wk|weights_proj|[qk]_proj|index_qk_proj|[qk]_(layer)?norm)\.|index_kpool).*",
        "sparse attention by a learned index of another form",
    ),
    (r".*\.altup\..*", "streams, one of which is updated at a time (AltUp)"),
    (r".*\.laurel\..*", "a low-rank path beside attention (LAuReL)"),
    (r".*\.(shape|pronunciation)_embed\..*", "ids of a character's shape and pronunciation next to those of tokens"),
    (r".*\.act_fn\..*", "an activation with parameters"),
    (r".*\.mlp\.(down|up)_embed\..*", "experts of one neuron, chosen by two keys"),
)
# The same for a tensor that was not recognized; elsewhere tensors of such names are recognized.
MISSING_BY_PLACE: tuple[tuple[str, str], ...] = (
    (r".*\.attn_sink", "attention sinks of another form"),
    (r".*\.(hc_\w+|attn_res)(\..*)?", "residual wirings whose tensors have other names"),
    (r".*\.self_attn\.[qkvo]_proj\.\w+", "two mixers side by side in a layer"),
    (r".*norm\w*\.(weight|bias)", "a norm where no wiring here has one"),
    (r".*\.(A_log|conv1d)(\..*)?", "a recurrent or state-space mixer of another kind"),
    (r".*\.conv\..*", "a convolution of another form"),
    (r".*\.experts\.\w+(\.weight|\.bias)?", "experts in one tensor of an unknown order"),
)
