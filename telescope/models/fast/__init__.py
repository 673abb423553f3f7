"""What makes Hugging Face models fast; each part leaves what they compute as it is.

packed.py   rows without padding, and log-probs without all logits at once
fuse.py     several operations of a model in one kernel (on a GPU)
kernels.py, decode_kernels.py  the kernels, in Triton; imported only where there is a GPU
capture.py  small training passes as CUDA graphs

May import nothing else of ours.
"""
