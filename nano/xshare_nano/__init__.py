"""nano, a small trained mixture of experts, and nano-draft, its draft model: files alone, which xshare.models finds."""
