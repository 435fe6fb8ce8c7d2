import unittest

from page import page


class PageTest(unittest.TestCase):
    def test_the_status_is_on_the_page(self):
        self.assertIn("<p>busy</p>", page("busy"))


if __name__ == "__main__":
    unittest.main()
