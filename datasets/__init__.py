"""What the data is: records, their storages, and datasets over them."""

if __name__ == "datasets":  # imported by its folder's name, from a program run in the checkout
    raise ImportError(
        f"`import datasets` found {__file__}, a folder of Penstock's that is `penstock.datasets`; "
        f"to import the package of Hugging Face, run your program from another folder"
    )
