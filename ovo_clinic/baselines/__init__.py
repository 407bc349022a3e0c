"""Classical baselines, one file each: families of scikit-learn classifiers with the settings that are tried."""
