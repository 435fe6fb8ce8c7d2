"""Makes the status page."""


def page(status: str) -> str:
    return f"<!doctype html><title>Status</title><p>{status}</p>\n"


if __name__ == "__main__":
    print(page("ok"), end="")
