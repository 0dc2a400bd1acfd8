"""Represent data as records, storages, and datasets over them."""

if __name__ == "datasets":  # a program run in the checkout imported the folder
    raise ImportError(
        f"`import datasets` found {__file__}, a folder of Penstock's that is `penstock.datasets`; "
        f"to import the package of Hugging Face, run your program from another folder"
    )
