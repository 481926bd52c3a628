"""Recipe of the embedded model: procedural emoji scenes, their tokenizer, the token model and its export."""
