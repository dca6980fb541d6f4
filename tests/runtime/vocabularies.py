"""Small tokenizers of other kinds than byte-level BPE, as real models have them."""

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram
from transformers import PreTrainedTokenizerFast

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?()[]{}<>/|_-'\"\n"
LLAMA_2_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{% set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)


def llama_2(is_legacy: bool) -> PreTrainedTokenizerFast:
    """SentencePiece BPE with byte fallback. Each text begins with a space of its own.

    Legacy files put it there by a normalizer (behind every control token as well), newer ones by the pre-tokenizer.
    """
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *LETTERS]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "a"), ("i", "n"), ("▁", "in"), ("▁", "▁"), ("▁▁", "▁▁")]
    vocabulary = {token: index for index, token in enumerate([*tokens, *map("".join, merges)])}
    model = BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    backend = Tokenizer(model)
    if is_legacy:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrapped(backend)


def unigram() -> PreTrainedTokenizerFast:
    """SentencePiece Unigram, whose model knows `</s>` as a word of its own."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", -0.1), ("▁", -2.0), ("▁the", -3.0), ("in", -4.0)]
    backend = Tokenizer(Unigram([*pieces, *((letter, -8.0) for letter in LETTERS)], 0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    backend.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    return _wrapped(backend)


def _wrapped(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>", add_bos_token=True
    )
    wrapped.chat_template = LLAMA_2_TEMPLATE
    return wrapped
