"""A simulated SGLang server: the real command line, HTTP interface and manners, without a GPU or a model.

It is started by the `sglang` of the sandbox's image. Not here: the arithmetic of batching and caching, which is
`sglpool.enginemodel`. Nothing is imported here, so that each process of the sandbox loads only what it needs.
"""
