"""Packaging of checkmate_tf. Ranges are those the test suite was run with."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="checkmate-tf",
    version="0.1.0",
    description="Train Keras models under a hard memory budget: optimal tensor rematerialization with exact numbers",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["tensorflow", "keras", "memory", "rematerialization", "gradient checkpointing", "recomputation"],
    project_urls={"Paper": "https://arxiv.org/abs/1910.02653"},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    # data/ is read in a checkout as it lies there; what the package needs of it is installed as checkmate_tf/data
    packages=[*find_packages(include=["checkmate_tf", "checkmate_tf.*"]), "checkmate_tf.data"],
    package_dir={"checkmate_tf.data": "data"},
    package_data={"checkmate_tf": ["py.typed"], "checkmate_tf.data": ["v100_cost_model.json"]},
    install_requires=[
        "tensorflow>=2.20,<2.22",
        "keras>=3.14,<3.16",
        "gurobipy>=13,<14",
        "numpy>=2.0,<3",
        "pandas>=2.2,<4",
        "scipy>=1.13,<2",
        "ortools>=9.15,<10",
        "networkx>=3.2,<4",
        "numba>=0.61,<1",
        "matplotlib>=3.8,<4",
        "rich>=13,<16",
        "typer>=0.16,<1",
        "platformdirs>=4,<5",
    ],
    extras_require={
        "demo": ["scikit-learn>=1.4,<2"],
        "docs": ["sphinx>=9,<10", "myst-parser>=5,<6", "numpydoc>=1.9,<2", "furo>=2025.12,<2027"],
        "hub": ["keras-hub>=0.32,<0.33"],
        "test": [
            "pytest>=8,<10",
            "pytest-xdist>=3.6,<4",
            "hypothesis>=6.100,<7",
            "ruff>=0.9,<1",
            "mypy>=1.16,<3",
            "scikit-learn>=1.4,<2",
            "tensorboard>=2.20,<2.22",
            "tf_keras>=2.20,<2.22",
        ],
    },
    entry_points={"console_scripts": ["checkmate-tf=checkmate_tf.cli:main"]},
)
