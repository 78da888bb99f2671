from tests.algorithm import shapes

shapes.install()
